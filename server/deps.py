"""What a route may have: the face it belongs to, and proof that the caller's key is good."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from ..core.callers import Caller, Scope
from ..engine.client import EngineClient
from ..engine.metering import Free, Meter
from ..lora.catalog import Catalog, Resolution
from .auth import Anyone, KeyVerifier
from .flights import Flights

BEARER = HTTPBearer(auto_error=False, scheme_name="key")  # tells OpenAPI; it checks nothing
MAX_BODY = 16 << 20  # bytes; a prompt of a million token ids is about 7 MB


@dataclass(frozen=True, slots=True)
class Face:
    """Everything that the routes share."""

    engine: EngineClient
    catalog: Catalog
    keys: KeyVerifier = field(default_factory=Anyone)
    meter: Meter = field(default_factory=Free)
    max_body: int = MAX_BODY
    scrapers: KeyVerifier = field(default_factory=Anyone)  # who may read /metrics
    flights: Flights = field(default_factory=Flights)


def face_of(request: Request) -> Face:
    """The face that `request` came to."""
    return cast(Face, request.app.state.face)


async def caller_of(request: Request) -> Caller:
    """Who calls; raises Unauthorized without a good key where keys are asked for, Forbidden without the scope."""
    origin = request.client.host if request.client else ""
    query = request.query_params.multi_items()
    caller = await face_of(request).keys.verify(request.headers.get("authorization"), origin, query)
    caller.require(Scope.INFER)
    return caller


async def resolved(request: Request, caller: Caller, model: str, user: str | None) -> Resolution:
    """What `model` means to `caller`, who sticks to one of several revisions by a header or by `user`."""

    def sticky(header: str | None) -> str | None:
        return user if header is None else request.headers.get(header)

    return await face_of(request).catalog.resolve(model, caller, sticky)


FaceDep = Annotated[Face, Depends(face_of)]
CallerDep = Annotated[Caller, Depends(caller_of)]
