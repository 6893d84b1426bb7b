"""Items of a conversation, as /v1/responses takes, keeps and shows them, and the chat messages that they stand for.

An item is made whole when it comes in (an id, a status, its content as parts), so that what is kept is what is shown.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...core.errors import InvalidRequest
from .store import Json

ROLES = ("user", "assistant", "system", "developer")
PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
TEXT_PARTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}  # type -> the field that is read


def new_item_id(kind: str) -> str:
    """An id for an item of that type."""
    return f"{PREFIXES[kind]}_{uuid.uuid4().hex}"


def items_in(given: str | Sequence[Mapping[str, Any]], model: str) -> list[Json]:
    """The items of an `input`, each made whole; raises InvalidRequest that names the first one that cannot be."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_Reader(f"input[{at}]", item, model).item() for at, item in enumerate(given)]


def messages_of(items: Iterable[Json]) -> list[Json]:
    """The chat messages of whole items: thoughts, words and calls of one assistant's turn are one message."""
    messages: list[Json] = []
    for item in items:
        _ADDERS[item["type"]](messages, item)
    return messages


def text_of(item: Json) -> str:
    """All that a message says."""
    return "\n".join(part[TEXT_PARTS[part["type"]]] for part in item["content"])


class _Reader:
    """One item as it was sent, and the way to it for messages of errors."""

    def __init__(self, param: str, given: Mapping[str, Any], model: str) -> None:
        self._param = param
        self._given = given
        self._model = model

    def item(self) -> Json:
        kind = self._given.get("type", "message")
        readers: dict[object, Callable[[], Json]] = {
            "message": self._message,
            "function_call": self._call,
            "function_call_output": self._call_output,
            "reasoning": self._reasoning,
        }
        if not isinstance(kind, str) or kind not in readers:
            can = ", ".join(str(name) for name in readers)
            raise self._wrong("type", f"there are no items of type {kind!r} here; there are {can}")
        given = self._given.get("id")
        id = given if isinstance(given, str) and given else new_item_id(kind)
        return {"id": id, "type": kind, "status": "completed", **readers[kind]()}

    def _message(self) -> Json:
        role = self._given.get("role")
        if role not in ROLES:
            raise self._wrong("role", f"expected one of {', '.join(ROLES)}")
        return {"role": role, "content": self._parts("content", "output_text" if role == "assistant" else "input_text")}

    def _call(self) -> Json:
        return {name: self._text(name) for name in ("call_id", "name", "arguments")}

    def _call_output(self) -> Json:
        output = self._given.get("output")
        parts = self._parts("output", "input_text")
        return {"call_id": self._text("call_id"), "output": output if isinstance(output, str) else parts}

    def _reasoning(self) -> Json:
        if self._given.get("content") is None and self._given.get("encrypted_content") is not None:
            raise self._wrong("encrypted_content", "nothing here can decrypt it; send content, or leave the item out")
        content, summary = self._given.get("content"), self._given.get("summary")
        if not isinstance(summary, list | None):
            raise self._wrong("summary", "expected a list", code="invalid_type")
        return {
            "summary": summary or [],
            "content": [] if content is None else self._thoughts(content),
        }

    def _thoughts(self, content: object) -> list[Json]:
        if not isinstance(content, list):
            raise self._wrong("content", "expected a list of parts of type reasoning_text")
        for at, part in enumerate(content):
            if (
                not isinstance(part, dict)
                or part.get("type") != "reasoning_text"
                or not isinstance(part.get("text"), str)
            ):
                raise self._wrong(f"content[{at}]", "expected a part of type reasoning_text, with a text")
        return [{"type": "reasoning_text", "text": part["text"]} for part in content]

    def _parts(self, name: str, plain: str) -> list[Json]:
        """The parts of a content; one that is a string is a part of the type `plain`."""
        content = self._given.get(name)
        if isinstance(content, str):
            return [_text_part(plain, content)]
        if not isinstance(content, list):
            raise self._wrong(name, "expected a string or a list of parts", code="invalid_type")
        return [self._part(f"{name}[{at}]", part) for at, part in enumerate(content)]

    def _part(self, name: str, part: object) -> Json:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str):
            raise self._wrong(name, "expected an object with a type", code="invalid_type")
        if kind not in TEXT_PARTS:
            raise self._wrong(name, f"{self._model} is a text model; it cannot read a part of type {kind}")
        said = part.get(TEXT_PARTS[kind])
        if not isinstance(said, str):
            raise self._wrong(f"{name}.{TEXT_PARTS[kind]}", "expected a string", code="invalid_type")
        return _text_part(kind, said)

    def _text(self, name: str) -> str:
        found = self._given.get(name)
        if not isinstance(found, str):
            raise self._wrong(name, "expected a string", code="invalid_type")
        return found

    def _wrong(self, name: str, words: str, code: str | None = None) -> InvalidRequest:
        param = f"{self._param}.{name}"
        return InvalidRequest(f"{param}: {words}", param=param, code=code)


def _text_part(kind: str, text: str) -> Json:
    part: Json = {"type": kind, TEXT_PARTS[kind]: text}
    return {**part, "annotations": []} if kind == "output_text" else part


def _add_message(messages: list[Json], item: Json) -> None:
    if item["role"] != "assistant":
        messages.append({"role": item["role"], "content": text_of(item)})
        return
    message = _assistant(messages)
    if message["content"] or "tool_calls" in message:  # two messages in a row, or words after calls
        message = {"role": "assistant", "content": ""}
        messages.append(message)
    message["content"] = text_of(item)


def _add_call(messages: list[Json], item: Json) -> None:
    function = {"name": item["name"], "arguments": item["arguments"]}
    call = {"id": item["call_id"], "type": "function", "function": function}
    _assistant(messages).setdefault("tool_calls", []).append(call)


def _add_call_output(messages: list[Json], item: Json) -> None:
    output = item["output"]
    said = output if isinstance(output, str) else "\n".join(part[TEXT_PARTS[part["type"]]] for part in output)
    messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": said})


def _add_reasoning(messages: list[Json], item: Json) -> None:
    thought = "\n".join(part["text"] for part in item["content"])
    if thought:
        messages.append({"role": "assistant", "content": "", "reasoning_content": thought})


def _assistant(messages: list[Json]) -> Json:
    """The assistant's message that is being put together."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


_ADDERS: Mapping[str, Callable[[list[Json], Json], None]] = {
    "message": _add_message,
    "function_call": _add_call,
    "function_call_output": _add_call_output,
    "reasoning": _add_reasoning,
}
