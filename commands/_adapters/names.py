"""How adapters are named on the command line: NAME, NAME@REVISION, NAME@ALIAS, as in requests."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from ...core.errors import InvalidRequest

DEFAULT = "default"  # the alias that the bare name means


def add_named(parser: argparse.ArgumentParser, form: str, help: str | None = None) -> None:
    """An adapter with, perhaps, a revision of it, which is no word of its own."""
    parser.add_argument("name", metavar=form, help=help)
    parser.set_defaults(hint="a revision is written with its adapter, as my-sql@2")


@dataclass(frozen=True, slots=True)
class Named:
    """A name and what stood behind its @, if anything."""

    name: str
    rest: str | None

    @property
    def revision(self) -> int | None:
        """The number, where one is given; raises InvalidRequest for anything else behind the @."""
        if self.rest is None:
            return None
        if not self.rest.isascii() or not self.rest.isdigit():
            raise InvalidRequest(f"{self.name}@{self.rest}: this takes the number of a revision, as in {self.name}@3")
        return int(self.rest)

    @property
    def alias(self) -> str:
        """The alias; raises InvalidRequest where a revision is named."""
        if self.rest is not None and self.rest.isdigit():
            raise InvalidRequest(f"{self.name}@{self.rest}: this takes an alias, as in {self.name}@prod")
        return self.rest or DEFAULT

    def __str__(self) -> str:
        return self.name if self.rest is None else f"{self.name}@{self.rest}"


def named(text: str) -> Named:
    """What a person wrote; raises InvalidRequest for a name or a rest that is empty."""
    name, sign, rest = text.partition("@")
    if not name or (sign and not rest):
        raise InvalidRequest(f"{text!r} names no adapter; write NAME, NAME@REVISION or NAME@ALIAS")
    return Named(name, rest if sign else None)
