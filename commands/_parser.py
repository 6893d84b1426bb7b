"""How a command line is read: one that cannot be is refused in one line, with what was probably meant."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from ..engine.config import parse_bytes, parse_float, parse_int

READERS: dict[Callable[[str], object], Callable[[str], object]] = {  # type of an argument -> who reads it
    int: parse_int,
    float: parse_float,
    parse_bytes: parse_bytes,
}


class Parser(argparse.ArgumentParser):
    """That of one command; those of its sub-commands are of the same class. The innermost is `args.parser`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_defaults(parser=self)
        for kind, read in READERS.items():
            self.register("type", kind, _in_words(read))

    def error(self, message: str) -> NoReturn:
        """Exit with 2 and one line: the usage of `aril serve` would fill the terminal and hide what is wrong."""
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')} (see {self.prog} --help)\n")

    def refuse(self, strays: Sequence[str], hint: str | None = None) -> NoReturn:
        """Exit with 2 for words that mean nothing; `hint` is what the command says to those that are no flags."""
        flag = next((word.partition("=")[0] for word in strays if word.startswith("-")), None)
        if flag is None:
            self.error(f"{strays[0]!r} is a word too many" + (f"; {hint}" if hint else ""))
        meant = _nearest(flag.replace("_", "-"), self._flags())
        self.error(f"no flag {flag}" + (f"; did you mean {meant}?" if meant else ""))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Not argparse's own, which lists the choices and suggests none before Python 3.14."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        meant = _nearest(str(value), choices)
        what = "" if action.option_strings else f"{action.metavar} ".lower()
        told = f"did you mean {meant}?" if meant else f"there are {', '.join(choices)}"
        raise argparse.ArgumentError(action if action.option_strings else None, f"no {what}{value!r}; {told}")

    def _flags(self) -> Iterable[str]:
        """Those that --help shows."""
        return (flag for each in self._actions if each.help is not argparse.SUPPRESS for flag in each.option_strings)


def _nearest(given: str, known: Iterable[str]) -> str | None:
    return next(iter(get_close_matches(given, known, 1)), None)


def _in_words(read: Callable[[str], object]) -> Callable[[str], object]:
    """As `read`, which says in a ValueError what it takes; argparse would tell the name of a function instead."""

    def told(text: str) -> object:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return told
