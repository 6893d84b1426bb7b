"""What an uploader says of an adapter and wants done with it: the same fields in a form, in JSON and in a row."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ..core.body import ExactBody
from .gate import golden_of
from .repo import Particulars
from .schemas import PLAIN, Text

MAX_WAIT = 600  # seconds
Tag = Annotated[str, Field(min_length=1, max_length=64, pattern=PLAIN)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Wishes(ExactBody):
    """All but the bytes. `activate`: once it is READY, true lets the bare name mean this, null does so only where it
    means nothing yet, false never. `force`: in spite of another base's name. `wait`: seconds to wait for the gate."""

    name: str
    description: Text | None = None
    note: Text = ""
    tags: list[Tag] = Field([], max_length=32)
    activate: bool | None = None
    force: bool = False
    golden: list[dict[str, Any]] = Field([])
    wait: Annotated[int, Field(ge=0, le=MAX_WAIT)] = 0

    @property
    def fields(self) -> dict[str, Any]:
        """What a row keeps; raises InvalidRequest for golden prompts that are none."""
        kept = self.model_dump(include={"description", "note", "tags", "activate", "force"})
        return kept | {"golden": golden_of(self.golden)}

    def particulars(self) -> Particulars:
        """What the registry takes in; raises InvalidRequest for golden prompts that are none."""
        return Particulars(**self.fields)


class SourceOrder(Wishes):
    """An adapter to be fetched. `sha256` is that of the archive, or else of adapter_model.safetensors."""

    source: Annotated[str, Field(max_length=2048)]
    sha256: Sha256 | None = None
