"""What the route of a request is called in logs and metrics: its path as declared, so that names stay few."""

from __future__ import annotations

from starlette.types import Scope


def route_of(scope: Scope) -> str | None:
    """`/admin/v1/keys/{id}`, say; None for a path that no route knows, which may be a key in the wrong place."""
    return getattr(scope.get("route"), "path", None)
