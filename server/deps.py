"""What a route may have: the face it belongs to, and proof that the caller's key is good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from ..core.bearer import key_in
from ..engine.client import EngineClient
from ..lora.catalog import Catalog
from .auth import Caller, KeyVerifier

MAX_BODY = 16 << 20  # bytes; a prompt of a million token ids is about 7 MB


@dataclass(frozen=True, slots=True)
class Face:
    """Everything that the routes share."""

    engine: EngineClient
    catalog: Catalog
    keys: KeyVerifier | None
    max_body: int = MAX_BODY


def face_of(request: Request) -> Face:
    """The face that `request` came to."""
    return cast(Face, request.app.state.face)


async def caller_of(request: Request) -> Caller:
    """Who calls; raises Unauthorized without a good key where keys are asked for."""
    keys = face_of(request).keys
    if keys is None:
        return Caller(name="anyone")
    return await keys.verify(key_in(request.headers.get("authorization")))


FaceDep = Annotated[Face, Depends(face_of)]
