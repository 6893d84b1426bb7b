"""What the admin API answers."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from .catalog import AdapterCatalog
from .tables import Adapter, State


class RevisionView(BaseModel):
    """One immutable set of bytes. `size` is in bytes; `rank` is the largest."""

    model_config = ConfigDict(from_attributes=True)

    number: int
    digest: str
    size: int
    rank: int
    target_modules: list[str]
    notes: list[str]
    config: dict[str, Any]
    state: State
    created: int


class AdapterView(BaseModel):
    """One adapter. `fault` says why it does not answer although it is active."""

    object: Literal["adapter"] = "adapter"
    name: str
    description: str
    active: bool
    revision: int | None  # the active one
    digest: str | None
    fault: str | None
    created: int
    revisions: list[RevisionView]

    @classmethod
    def of(cls, adapter: Adapter, catalog: AdapterCatalog) -> AdapterView:
        """The view of a row."""
        active = adapter.active
        return cls(
            name=adapter.name,
            description=adapter.description,
            active=active is not None,
            revision=active.number if active else None,
            digest=active.digest if active else None,
            fault=catalog.fault(adapter.name),
            created=adapter.created,
            revisions=[RevisionView.model_validate(revision) for revision in adapter.revisions],
        )


class AdapterList(BaseModel):
    """All adapters, by name."""

    object: Literal["list"] = "list"
    data: list[AdapterView]


class Deleted(BaseModel):
    """The answer to DELETE."""

    object: Literal["adapter"] = "adapter"
    name: str
    deleted: Literal[True] = True
