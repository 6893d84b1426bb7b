"""The lines of OpenAI's batch files: what one asks, and the line that answers it. Knows no file, table or server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from .answering import Answer
from .errors import InvalidRequest
from .weight import check_weight

FIELDS = ("custom_id", "method", "url", "body")
LONGEST_ID = 512  # characters of a custom_id
REPLY_ID = "batch_req_"
REPLY_START = f'{{"id":"{REPLY_ID}'.encode()  # of every line that answers one
MARK = b"\xef\xbb\xbf"  # that some editors begin a file with
# Ends of lines to str.splitlines, which many a reader of such files uses; JSON lets them stand in a text as they are.
ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


class BadLine(InvalidRequest):
    """A line that asks for nothing; `number` is which."""

    def __init__(self, number: int, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(f"line {number}: {message}", param=param, code=code)
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One request of a file."""

    number: int  # from 1
    custom_id: str
    url: str
    body: Mapping[str, Any]

    @classmethod
    def of(cls, raw: bytes, number: int, urls: Collection[str]) -> Line:
        """The request in a line; raises BadLine for what is none, or not for one of `urls`."""
        said = _object(raw.removeprefix(MARK) if number == 1 else raw, number)
        custom_id, url, body = (_field(said, name, number) for name in _KINDS)
        if not custom_id or len(custom_id) > LONGEST_ID:
            message = f"custom_id: takes 1 to {LONGEST_ID} characters"
            raise BadLine(number, message, code="invalid_custom_id", param="custom_id")
        if said.get("method") != "POST":
            raise BadLine(number, "method: it must be POST", code="invalid_method", param="method")
        if url not in urls:
            message = f"url: {url[:100]!r} is not what this batch is for; possible: {', '.join(urls)}"
            raise BadLine(number, message, code="invalid_url", param="url")
        if unknown := set(said) - set(FIELDS):
            message = f"{min(unknown)[:100]}: there is no such field; there are {', '.join(FIELDS)}"
            raise BadLine(number, message, code="unknown_field", param=min(unknown)[:100])
        for name in ("stream", "background"):
            if body.get(name):
                message = f"body.{name}: a batch has the whole answer, when it is there; leave it out"
                raise BadLine(number, message, code="unsupported_value", param=f"body.{name}")
        return cls(number=number, custom_id=custom_id, url=url, body=body)

    @property
    def model(self) -> str | None:
        """The model that it names, if a column can hold that."""
        model = self.body.get("model")
        return model if isinstance(model, str) and "\0" not in model else None

    def asked(self) -> bytes:
        """The body to send. A number that is too large for one becomes Infinity, which the server refuses by name."""
        return json.dumps(self.body, separators=(",", ":")).encode()


_KINDS: Mapping[str, tuple[type, str]] = {
    "custom_id": (str, "a string"),
    "url": (str, "a string"),
    "body": (dict, "an object"),
}


@dataclass(frozen=True, slots=True)
class Reply:
    """The line that answers one."""

    number: int
    text: bytes  # with its end
    ok: bool
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @classmethod
    def of(cls, line: Line, answer: Answer) -> Reply:
        """What the server said."""
        body = _read(answer.body)
        said = {"status_code": answer.status, "request_id": answer.request_id, "body": body}
        usage = body.get("usage") if isinstance(body, dict) else None
        text = _written(line, said, None)
        return cls(line.number, text, 200 <= answer.status < 300, *_tokens(usage if isinstance(usage, dict) else {}))

    @classmethod
    def none(cls, line: Line, code: str, message: str) -> Reply:
        """There is no answer, and why."""
        return cls(line.number, _written(line, None, {"code": code, "message": message}), ok=False)


@dataclass(slots=True)
class Checked:
    """What a look at all lines has found. Each custom_id may stand once."""

    total: int = 0
    errors: list[InvalidRequest] = field(default_factory=list)
    _models: set[str | None] = field(default_factory=set)
    _seen: dict[str, int] = field(default_factory=dict)  # custom_id -> number of its line

    @property
    def model(self) -> str | None:
        """The one model that all lines name."""
        return next(iter(self._models)) if len(self._models) == 1 else None

    def look(self, raw: bytes, number: int, urls: Collection[str]) -> None:
        """Take in one more line."""
        self.total += 1
        try:
            line = Line.of(raw, number, urls)
            self._models.add(line.model)
            if (first := self._seen.setdefault(line.custom_id, number)) != number:
                message = f"custom_id: {line.custom_id[:100]!r} is that of line {first} too"
                raise BadLine(number, message, code="duplicate_custom_id", param="custom_id")
        except BadLine as error:
            self.errors.append(error)

    def asks_for(self, custom_id: str) -> bool:
        """Whether one of the lines has that id."""
        return custom_id in self._seen

    def close(self) -> None:
        """There are no more lines."""
        if not self.total:
            self.errors.append(InvalidRequest("the file has no lines", code="empty_file"))


def id_in(raw: bytes) -> str | None:
    """The custom_id that a line of answers is to; None for what is no such line."""
    try:
        said = from_json(raw)
    except ValueError:
        return None
    found = said.get("custom_id") if isinstance(said, dict) else None
    return found if isinstance(found, str) else None


def _read(body: bytes) -> Any:
    try:
        return from_json(body)
    except ValueError:
        return body.decode("utf-8", "replace")


def _object(raw: bytes, number: int) -> dict[str, Any]:
    try:
        check_weight(raw)
    except InvalidRequest as error:
        raise BadLine(number, error.message, code=error.code) from None
    try:
        said = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        message = f"this is not valid JSON: {error}".replace(" at line 1 column ", " at column ")
        raise BadLine(number, message, code="invalid_json_line") from None
    if not isinstance(said, dict):
        raise BadLine(number, "each line must be a JSON object", code="invalid_json_line")
    return said


def _field(said: Mapping[str, Any], name: str, number: int) -> Any:
    kind, words = _KINDS[name]
    if name not in said:
        message = f"{name}: this field is required"
        raise BadLine(number, message, code="missing_required_parameter", param=name)
    if not isinstance(said[name], kind):
        raise BadLine(number, f"{name}: it must be {words}", code="invalid_type", param=name)
    return said[name]


def _written(line: Line, response: Mapping[str, Any] | None, error: Mapping[str, Any] | None) -> bytes:
    id = f"{REPLY_ID}{uuid.uuid4().hex}"
    said = {"id": id, "custom_id": line.custom_id, "response": response, "error": error}
    text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    return text.translate(ENDS).encode("utf-8", "replace") + b"\n"


def _tokens(usage: Mapping[str, Any]) -> tuple[int, int, int]:
    """Of the prompt, the cached ones of these, of the answer. Responses have names of their own for them."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0))
    return prompt, details.get("cached_tokens", 0), usage.get("completion_tokens", usage.get("output_tokens", 0)) or 0
