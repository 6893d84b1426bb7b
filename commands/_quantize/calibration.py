"""The text that a tool looks at while it quantises: a JSONL file of the user's, or a page of old books."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from ...core.errors import InvalidRequest, NotFound

BUILT_IN = Path(__file__).parent / "calibration.txt"
SHORTEST = 16  # tokens; less says little about activations
PIECE = 256  # tokens of one sample of the built-in text


class Encoder(Protocol):
    """What turns text into the model's own tokens."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Calibration:
    """Token ids, and where they come from in words."""

    samples: list[list[int]]
    about: str

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.samples))


def read_calibration(path: Path | None, encoder: Encoder, *, max_samples: int, max_tokens: int) -> Calibration:
    """At most `max_samples` samples of at most `max_tokens` tokens.

    `path` holds one JSON object on each line, {"text": ...} or {"messages": [...]}; None = the built-in text. Raises
    NotFound, or InvalidRequest with the line at fault.
    """
    if path is None:
        return _built_in(encoder, min(max_tokens, PIECE), max_samples)
    if not path.is_file():
        raise NotFound(f"--calibration {path}: there is no such file", param="calibration")
    found = (_tokens(line, encoder, f"{path}:{at}") for at, line in _lines(path))
    samples = [ids[:max_tokens] for ids in islice((ids for ids in found if len(ids) >= SHORTEST), max_samples)]
    if not samples:
        raise InvalidRequest(
            f"--calibration {path}: no line has {SHORTEST} tokens or more of text", param="calibration"
        )
    about = f"{len(samples)} samples of {path.name}, {sum(map(len, samples)):,} tokens"
    return Calibration(samples, about)


def _built_in(encoder: Encoder, piece: int, max_samples: int) -> Calibration:
    ids = encoder.encode(BUILT_IN.read_text(encoding="utf-8"), add_special_tokens=False)
    cut = [ids[at : at + piece] for at in range(0, len(ids), piece)]
    samples = [ids for ids in cut if len(ids) >= SHORTEST][:max_samples]
    total = sum(map(len, samples))
    about = (
        f"Aril's built-in page of public-domain English prose and verse, {len(samples)} samples, {total:,} tokens: "
        f"little, and far from your use; give --calibration FILE.jsonl of texts like those that the model will see"
    )
    return Calibration(samples, about)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from ((at, line) for at, line in enumerate(file, start=1) if line.strip())


def _tokens(line: str, encoder: Encoder, where: str) -> list[int]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"{where} is not JSON: {error}", param="calibration") from error
    if isinstance(found, dict) and isinstance(found.get("text"), str):
        return encoder.encode(found["text"])
    if isinstance(found, dict) and isinstance(found.get("messages"), list):
        return encoder.render(found["messages"], add_generation_prompt=False)
    raise InvalidRequest(
        f'{where} holds neither "text" (a string) nor "messages" (a list, as in the chat API)', param="calibration"
    )
