"""Blocks of Anthropic's messages, as chat messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...core.errors import InvalidRequest
from .schemas import Blocks, Said

Json = dict[str, Any]


def messages_of(said: Sequence[Said], system: Blocks | None, model: str) -> list[Json]:
    """The chat messages; raises InvalidRequest that names the first block that a text model cannot read, or that
    answers nothing."""
    messages: list[Json] = []
    reader = _Reader(model)
    if system is not None:
        messages.append({"role": "system", "content": reader.text("system", system)})
    for at, turn in enumerate(said):
        messages += reader.turn(f"messages[{at}].content", turn)
    return messages


def unheeded(said: Iterable[Said]) -> set[str]:
    """The fields of blocks that nothing is done with. That a prompt be cached need not be asked for."""
    blocks = (block for turn in said if not isinstance(turn.content, str) for block in turn.content)
    return {f"tool_result.{name}" for block in blocks for name in ("is_error",) if block.get(name)}


class _Reader:
    """Reads one conversation for one model, whose name stands in messages of errors."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._used: set[str] = set()  # the ids of tool_use blocks so far

    def turn(self, param: str, said: Said) -> Iterator[Json]:
        if said.role == "user":
            yield from self._user(param, said.content)
        elif said.role == "system":
            yield {"role": "system", "content": self.text(param, said.content)}
        else:
            yield self._assistant(param, said.content)

    def text(self, param: str, content: object) -> str:
        """What blocks of text say."""
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise _wrong(param, "expected a string or a list of blocks", code="invalid_type")
        return "\n".join(self._text(f"{param}[{at}]", block) for at, block in enumerate(content))

    def _user(self, param: str, content: Blocks) -> Iterator[Json]:
        """Words, and results of tools as messages of their own, in their order."""
        words: list[str] = []
        for at, block in enumerate([{"type": "text", "text": content}] if isinstance(content, str) else content):
            place = f"{param}[{at}]"
            if block.get("type") != "tool_result":
                words.append(self._text(place, block))
                continue
            if words:
                yield {"role": "user", "content": "\n".join(words)}
                words = []
            said = self.text(f"{place}.content", block.get("content") or "")
            yield {"role": "tool", "tool_call_id": self._use(place, block), "content": said}
        if words or not content:
            yield {"role": "user", "content": "\n".join(words)}

    def _assistant(self, param: str, content: Blocks) -> Json:
        words: list[str] = []
        thoughts: list[str] = []
        calls: list[Json] = []
        for at, block in enumerate([{"type": "text", "text": content}] if isinstance(content, str) else content):
            place, kind = f"{param}[{at}]", block.get("type")
            if kind == "thinking":
                thoughts.append(_string(place, block, "thinking"))
            elif kind == "tool_use":
                calls.append(_call(place, block))
                self._used.add(block["id"])
            else:
                words.append(self._text(place, block))
        message: Json = {"role": "assistant", "content": "\n".join(words)}
        if thoughts:
            message["reasoning_content"] = "\n".join(thoughts)
        return {**message, "tool_calls": calls} if calls else message

    def _use(self, place: str, result: Json) -> str:
        """The id of the use of a tool that it is the result of."""
        id = _string(place, result, "tool_use_id")
        if id not in self._used:
            raise _wrong(f"{place}.tool_use_id", f"no tool_use before it has the id {id[:64]!r}; send that block too")
        return id

    def _text(self, place: str, block: object) -> str:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if not isinstance(block, Mapping) or not isinstance(kind, str):
            raise _wrong(place, "expected an object with a type", code="invalid_type")
        if kind != "text":
            raise _wrong(place, f"{self._model} is a text model; it cannot read a block of type {kind} here")
        return _string(place, block, "text")


def _call(place: str, block: Json) -> Json:
    if not isinstance(block.get("input"), dict):
        raise _wrong(f"{place}.input", "expected an object", code="invalid_type")
    function = {"name": _string(place, block, "name"), "arguments": json.dumps(block["input"], ensure_ascii=False)}
    return {"id": _string(place, block, "id"), "type": "function", "function": function}


def _string(place: str, block: Mapping[str, Any], name: str) -> str:
    found = block.get(name)
    if not isinstance(found, str):
        raise _wrong(f"{place}.{name}", "expected a string", code="invalid_type")
    return found


def _wrong(param: str, words: str, code: str | None = None) -> InvalidRequest:
    return InvalidRequest(f"{param}: {words}", param=param, code=code)
