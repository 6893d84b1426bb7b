"""Concurrent edits: a thing's version is its ETag, and a change may say which version it was meant for."""

from __future__ import annotations

from typing import Annotated, Protocol, TypeVar

from fastapi import Header, Response

from ..core.errors import Stale

IfMatch = Annotated[str | None, Header(alias="If-Match", description="the ETag that the change was meant for")]


class Tagged(Protocol):
    """A view that tells its ETag."""

    etag: str


V = TypeVar("V", bound=Tagged)


def tagged(response: Response, view: V) -> V:
    """`view`, with its ETag in the response's header too."""
    response.headers["ETag"] = view.etag
    return view


def etag(version: int) -> str:
    """The ETag of a version."""
    return f'"{version}"'


def check_match(header: str | None, version: int) -> None:
    """Raises Stale unless the If-Match header, if there is one, names `version`."""
    if header is None or header.strip() == "*":
        return
    if etag(version) not in [tag.strip() for tag in header.split(",")]:
        raise Stale(f"it has changed: its ETag is now {etag(version)}, not {header}; look again", param="If-Match")
