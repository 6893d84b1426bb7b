"""Spans: the parts of a text that are held to a form while the rest of it is free. Knows no library and no token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of three: words to the letter, which may be a special token, a regular expression, or JSON of a schema."""

    words: str = ""
    regex: str = ""
    schema: str = ""  # as text

    @property
    def size(self) -> int:
        """Characters."""
        return len(self.words) + len(self.regex) + len(self.schema)


Form = tuple[Part, ...]  # one part after the other, with blanks around them or not


@dataclass(frozen=True, slots=True)
class Spans:
    """Behind each of `marks`, wherever it comes, a text follows one of `forms`; then it is free again."""

    marks: tuple[str, ...]
    forms: tuple[Form, ...]

    @property
    def size(self) -> int:
        """Characters."""
        return sum(part.size for form in self.forms for part in form)
