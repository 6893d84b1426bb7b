"""What form a caller asks an answer to have: one constraint and how it is read. Knows no library and no token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from ...core.errors import InvalidRequest
from .spans import Spans

# Between the tokens of a JSON answer, unless asked for otherwise. Bounded, as models at a high temperature would else
# write blanks until max_tokens; long enough for a new line that is indented ten times by two.
WHITESPACE = r"[\x20\x0A\x0D\x09]{1,21}"
LARGEST = 1 << 20  # characters of a constraint
KINDS = ("json", "regex", "choice", "grammar", "json_object")  # of a whole text


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """Exactly one of KINDS, or `spans`, which no field of a request says. Names and meanings are vLLM's.

    `json` is a JSON schema, as text or as an object; once made it is text. With `lenient`, what the schema says and no
    backend can hold to is passed over, else refused. `param` is the field that a caller wrote it in, and `places` those
    of its parts that came from other fields, each with its JSON pointer.
    Raises InvalidRequest for none, or more than one, or what is no constraint at all.
    """

    json: str | Mapping[str, object] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False
    lenient: bool = False
    param: str = "structured_outputs"
    spans: Spans | None = None
    places: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        given = [name for name in (*KINDS, "spans") if self._has(name)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise self.refused(f"takes exactly one of {', '.join(KINDS)}; there is {found}")
        if self.choice is not None:
            object.__setattr__(self, "choice", tuple(self.choice))
            if not self.choice or not all(isinstance(one, str) and one for one in self.choice):
                raise self.refused("choice is a list of texts, and none of them empty")
        self._check_size(sum(map(len, (self.regex or "", self.grammar or "", *(self.choice or ())))))
        self._check_size(0 if self.spans is None else self.spans.size)
        if self.json is not None:
            object.__setattr__(self, "json", self._schema_text())
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            raise self.refused("whitespace_pattern says which blanks there are, and disable_any_whitespace none")

    @classmethod
    def of(cls, given: Mapping[str, object]) -> StructuredOutputs:
        """From an object's fields; raises InvalidRequest for one that there is not."""
        known = {each.name for each in fields(cls)} - {"param", "lenient", "spans", "places"}
        if unknown := sorted(given.keys() - known):
            raise InvalidRequest(
                f"structured_outputs.{unknown[0]} is not supported; there are {', '.join(sorted(known))}",
                param="structured_outputs",
            )
        return cls(**given)  # type: ignore[arg-type]

    @property
    def kind(self) -> str:
        """Which of KINDS it is, or spans."""
        return next(name for name in (*KINDS, "spans") if self._has(name))

    @property
    def schemas(self) -> tuple[str, ...]:
        """The JSON schemas that it is made of, as text."""
        if isinstance(self.json, str):
            return (self.json,)
        forms = () if self.spans is None else self.spans.forms
        return tuple(dict.fromkeys(part.schema for form in forms for part in form if part.schema))

    def refused(self, why: str) -> InvalidRequest:
        """The error that says to a caller what is wrong with it."""
        return InvalidRequest(f"{self.param}: {why}", param=self.param)

    def field_at(self, place: str | None) -> tuple[str, str]:
        """The field that a caller wrote what stands at a pointer in, and the pointer to the beginning of that. None for
        what may stand anywhere."""
        for pointer, param in self.places:
            if f"{place}/".startswith(f"{pointer}/") or (place is None and len(self.places) == 1):
                return param, pointer
        return self.param, "#"

    def _check_size(self, size: int) -> None:
        if size > LARGEST:
            raise self.refused(f"{size} characters are over {LARGEST}, the most that a constraint may have")

    def _has(self, name: str) -> bool:
        """False and an absent `json_object` ask for nothing; a schema may be False, which nothing fulfils."""
        value = getattr(self, name)
        return value is not None and not (name == "json_object" and not value)

    def _schema_text(self) -> str:
        """The schema as text; the order of its properties is that of the answer."""
        try:
            text = self.json if isinstance(self.json, str) else json.dumps(self.json, ensure_ascii=False)
            self._check_size(len(text))
            schema = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise self.refused(f"json is not valid JSON: {error}") from None
        if schema is False:
            raise self.refused("nothing fulfils the schema false")
        if schema is not True and not isinstance(schema, dict):
            raise self.refused("a JSON schema is an object")
        return "{}" if schema is True else text
