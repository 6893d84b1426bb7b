"""Calls written as JSON objects with a name and arguments, behind marks or bare: what most formats are.

<tool_call>{"name": "f", "arguments": {...}}</tool_call>      one, or a list of them, behind a mark
{"name": "f", "parameters": {...}}; {"name": ...}             bare, where the answer begins with it
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from . import json_text
from .tape import Reading, Tape
from .teller import Teller

NAME = "name"
ARGUMENTS = ("arguments", "parameters")
KNOWN = (NAME, *ARGUMENTS, "id", "type")  # where calls may be bare, any other makes an object an answer in JSON
NOISE = tuple(" \t\r\n}],;")  # what models leave behind a call whose arguments are complete


class Outcome(Enum):
    """What an object turned out to be."""

    NONE = auto()  # no call; all of it is still remembered
    TOLD = auto()
    BROKEN = auto()  # a call that broke off in its arguments


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """One such format. `marks`: what calls stand behind, each with what ends them, "" for nothing.

    A name that is not offered makes no call: the text is said as it stands. A call that breaks off in its arguments is
    one, and all up to its end belongs to them.
    """

    marks: Mapping[str, str]
    bare: bool = False

    def read(self, tape: Tape, teller: Teller, names: Collection[str]) -> Reading[None]:
        """The Script, when `names` are offered."""
        if self.bare:
            teller.say((yield from tape.blanks()))
            if (yield from tape.peek()) in ("{", "["):
                yield from Span(tape, teller, names, bare=True).read()
        while mark := (yield from tape.until(self.marks, teller.say)):
            yield from Span(tape, teller, names, mark, self.marks[mark], self.bare).read()


@dataclass(slots=True)
class Span:
    """A place where calls may stand: `mark` has been read, `end` may follow."""

    tape: Tape
    teller: Teller
    names: Collection[str]
    mark: str = ""
    end: str = ""
    bare: bool = False

    def read(self) -> Reading[None]:
        """All calls that there are; what is none is said."""
        self.tape.keep()
        yield from self.tape.blanks()
        is_list = yield from self.tape.takes("[")
        outcome = yield from self._call()
        if outcome is Outcome.NONE:
            self.teller.say(self.mark)
        while outcome is Outcome.TOLD and (yield from self._goes_on(is_list)):
            outcome = yield from self._call()
        if outcome is Outcome.TOLD:
            yield from self._finish(is_list)
        elif outcome is Outcome.NONE:
            self.teller.say(self.tape.kept())
        else:
            yield from self.tape.until([self.end] if self.end else [], self.teller.argue)

    def _goes_on(self, is_list: bool) -> Reading[bool]:
        """Whether another call follows this one."""
        self.tape.keep()
        yield from self.tape.blanks()
        if (yield from self.tape.peek()) in ((",", ";") if is_list or not self.end else ()):
            self.tape.next()
            return True
        return self.bare and not is_list and (yield from self.tape.starts("{"))

    def _finish(self, is_list: bool) -> Reading[None]:
        """What is left over of calls is dropped where they end, else it is said."""
        if is_list and (yield from self.tape.takes("]")):
            self.tape.keep()
        while (yield from self.tape.peek()) in NOISE:
            self.tape.next()
        left = self.tape.kept()
        if not ((yield from self.tape.peek()) == "" or (self.end and (yield from self.tape.takes(self.end)))):
            self.teller.say(left)

    def _call(self) -> Reading[Outcome]:
        """One object."""
        yield from self.tape.blanks()
        if not (yield from self.tape.takes("{")):
            return Outcome.NONE
        found = _Found(self.bare)
        while (key := (yield from self._key())) is not None:
            if key in ARGUMENTS and found.name is not None and not found.told and (yield from self.tape.starts("{")):
                self.tape.kept()
                self.teller.open(found.name)
                if not (yield from json_text.value(self.tape, self.teller.argue)):
                    return Outcome.BROKEN
                self.tape.keep()
                found.told = True
            elif not found.takes(key, (yield from json_text.captured(self.tape)), self.names):
                break
            yield from self.tape.blanks()
            if not (yield from self.tape.takes(",")):
                break
        return self._told(found, (yield from self.tape.takes("}")))

    def _told(self, found: _Found, is_whole: bool) -> Outcome:
        if not found.told:
            if found.name is None or found.refused or not is_whole:
                return Outcome.NONE
            self.teller.open(found.name)
            self.teller.argue(found.arguments)
        left = self.tape.kept()
        if found.told and not is_whole:
            self.teller.say(left)
        return Outcome.TOLD

    def _key(self) -> Reading[str | None]:
        """A name with its colon; None where there is none."""
        parts: list[str] = []
        if not (yield from json_text.key(self.tape, parts.append)):
            return None
        yield from self.tape.blanks()
        found: str = json.loads("".join(parts).rstrip(" \t\r\n:"))
        return found


@dataclass(slots=True)
class _Found:
    """What an object has said so far."""

    bare: bool
    name: str | None = None
    arguments: str = "{}"
    told: bool = False
    refused: bool = False  # it is no call

    def takes(self, key: str, given: str | None, names: Collection[str]) -> bool:
        """Note a field; False when it makes the object no call."""
        if given is None or (self.bare and key not in KNOWN):
            self.refused = True
        elif self.told:
            pass
        elif key == NAME:
            self.name = given.strip('"')
            self.refused = self.name not in names
        elif key in ARGUMENTS:
            written = json_text.arguments(given)
            self.refused = written is None
            self.arguments = written or ""
        return not self.refused
