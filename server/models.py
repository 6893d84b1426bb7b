"""GET /v1/models: the base and every active adapter, under the names that `model` takes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from ..core.errors import NotFound
from ..engine.client import ModelInfo
from ..lora.catalog import CatalogEntry
from .deps import Face, FaceDep

router = APIRouter()


@router.get("/v1/models")
async def list_models(face: FaceDep) -> dict[str, Any]:
    """All models."""
    return {"object": "list", "data": await _all(face)}


@router.get("/v1/models/{name:path}")
async def show_model(face: FaceDep, name: str) -> dict[str, Any]:
    """One model; names may contain slashes."""
    for model in await _all(face):
        if model["id"] == name:
            return model
    raise NotFound(f"The model `{name}` does not exist.", param="model", code="model_not_found")


async def _all(face: Face) -> list[dict[str, Any]]:
    base = face.engine.model
    return [_base(base), *(_adapter(base, entry) for entry in await face.catalog.list())]


def _base(base: ModelInfo) -> dict[str, Any]:
    return {**_shape(base.id, base, base.created), "root": base.source, "parent": None}


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
