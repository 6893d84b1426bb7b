"""What the tests ask of answers, and ask about."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

HELLO: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 12}


class Seed(BaseModel):
    """A form that a random model can fill in."""

    model_config = ConfigDict(extra="forbid")

    colour: Literal["red", "green"]
    number: int = Field(ge=0, le=99)
