"""GET /v1/models: the base and every adapter whose bare name means something, as clients of vLLM expect.

One model can be looked at by any name that a request may use: `name@3` and `name@prod` too.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from ..core.errors import NotFound
from ..engine.client import EngineFacts, ModelInfo
from ..lora.catalog import CatalogEntry
from .answers import Model, ModelList
from .deps import BY_KEY, CallerDep, FaceDep
from .openapi import answers

router = APIRouter(dependencies=BY_KEY)


@router.get("/v1/models", responses=answers(ModelList))
async def list_models(face: FaceDep, caller: CallerDep) -> dict[str, Any]:
    """All models."""
    base = face.engine.model
    adapters = [_adapter(base, entry) for entry in await face.catalog.list(caller)]
    return {"object": "list", "data": [_base(face.engine), *adapters]}


@router.get("/v1/models/{name:path}", responses=answers(Model))
async def show_model(face: FaceDep, caller: CallerDep, name: str) -> dict[str, Any]:
    """One model; names may contain slashes."""
    base = face.engine.model
    if name == base.id:
        return _base(face.engine)
    entry = await face.catalog.find(name, caller)
    if entry is not None:
        return _adapter(base, entry)
    raise NotFound(f"The model `{name}` does not exist.", param="model", code="model_not_found")


def _base(engine: EngineFacts) -> dict[str, Any]:
    base, defaults = engine.model, dict(engine.default_params)
    return {**_shape(base.id, base, base.created), "root": base.source, "parent": None, "sampling_defaults": defaults}


def _adapter(base: ModelInfo, entry: CatalogEntry) -> dict[str, Any]:
    lineage = {"root": base.id, "parent": base.id, "revision": entry.ref.revision, "digest": entry.ref.digest}
    return {**_shape(entry.name, base, entry.created), **lineage}


def _shape(name: str, base: ModelInfo, created: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "aril",
        "max_model_len": base.max_model_len,
    }
