"""What a route may have: the face it belongs to, and proof that the caller's key is good."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Protocol, cast

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from ..core.callers import Caller, Scope
from ..engine.client import EngineFacts
from ..engine.request import BACKGROUND
from ..lora.catalog import Catalog, Clues, Resolution
from .aside import Aside
from .auth import Anyone, KeyVerifier
from .flights import Flights, Stream
from .formats import Formats
from .inside import caller_inside
from .records import Record, record_of
from .responses.shelf import Shelf

if TYPE_CHECKING:
    from .generation import Generation

BEARER = HTTPBearer(auto_error=False, scheme_name="key")  # tells OpenAPI; it checks nothing
MAX_BODY = 16 << 20  # bytes; a prompt of a million token ids is about 7 MB


class Runs(Protocol):
    """Whoever runs generations: in this process, or in the one that has the engine."""

    def run(self, generation: Generation) -> Stream:
        """The chunks of all its prompts, if its caller may have them now; closing it early aborts them.

        The headers of `generation` are complete before the first.
        """

    async def check(self, priority: int) -> None:
        """Raises Overloaded where not one choice more has room: before anything is done for a request."""


@dataclass(frozen=True, slots=True)
class Face:
    """Everything that the routes share."""

    engine: EngineFacts
    catalog: Catalog
    runs: Runs
    keys: KeyVerifier = field(default_factory=Anyone)
    max_body: int = MAX_BODY
    scrapers: KeyVerifier = field(default_factory=Anyone)  # who may read /metrics
    flights: Flights = field(default_factory=Flights)
    record: Record = field(default_factory=Record)  # of the request that asks
    trusts_templates: bool = False  # whether a request may bring its chat template
    responses: Shelf = field(default_factory=Shelf)
    formats: Formats = field(default_factory=Formats)  # how the model writes calls and thoughts
    aside: Aside = field(default_factory=Aside)


def face_of(request: Request) -> Face:
    """The face that `request` came to, as it meets it: with its record."""
    return replace(cast(Face, request.app.state.face), record=record_of(request.scope))


async def _face(request: Request) -> Face:
    # As every dependency a coroutine: the framework would call a function on another thread, at a millisecond a call.
    return face_of(request)


async def caller_of(request: Request) -> Caller:
    """Who calls; raises Unauthorized without a good key where keys are asked for, Forbidden without the scope."""
    caller = caller_inside(request) or await _verified(request)
    record_of(request.scope).caller = caller
    caller.require(Scope.INFER)
    return caller


async def _verified(request: Request) -> Caller:
    origin = request.client.host if request.client else ""
    query = request.query_params.multi_items()
    return await face_of(request).keys.verify(_authorization(request), origin, query)


def _authorization(request: Request) -> str | None:
    """The header that brings a key; Anthropic's clients have one of their own for it."""
    given, theirs = request.headers.get("authorization"), request.headers.get("x-api-key")
    return f"Bearer {theirs}" if given is None and theirs is not None else given


async def resolved(request: Request, caller: Caller, model: str, user: str | None) -> Resolution:
    """What `model` means to `caller`, who sticks to one of several revisions by a header or by `user`."""
    headers = dict(reversed(request.headers.items()))  # of two with one name the first counts
    return await face_of(request).catalog.resolve(model, caller, Clues(user, headers))


FaceDep = Annotated[Face, Depends(_face)]
CallerDep = Annotated[Caller, Depends(caller_of)]


async def _asker(face: FaceDep, caller: CallerDep) -> Caller:
    await face.runs.check(BACKGROUND if caller.patient else 0)
    return caller


BY_KEY = (Depends(BEARER), Depends(caller_of))  # what every route of the face stands behind
AskerDep = Annotated[Caller, Depends(_asker)]
"""Who calls for a generation. A full server says so here: before it reads a body, so it stands before the body."""
