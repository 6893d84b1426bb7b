"""Thoughts before a text that is held to a form: while they last, every token may come but those that end the text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thoughts:
    """What a request says of them. `ends`: the texts that end them; the form begins with the token after one.

    They are open from the start, or begin with one of the tokens `begins`, if that comes first.
    """

    ends: tuple[str, ...]
    begins: tuple[int, ...] = ()
    are_open: bool = False


class Thinking:
    """How far one text has come in them. Owner of whether it is amid them."""

    def __init__(self, asked: Thoughts, token_bytes: Callable[[int], bytes]) -> None:
        self.is_open = asked.are_open
        self.may_begin = () if asked.are_open else asked.begins  # the tokens that would, where nothing has come
        self._ends = tuple(end.encode() for end in asked.ends)
        self._token_bytes = token_bytes
        self._tail = b""

    def took(self, token: int) -> bool:
        """Go on by a token; whether it belongs to the thoughts."""
        if token in self.may_begin:
            self.is_open = True
        elif not self.is_open:
            self.may_begin = ()
            return False
        else:
            self._tail += self._token_bytes(token)
            self.is_open = not any(end in self._tail for end in self._ends)
            self._tail = self._tail[1 - max(map(len, self._ends)) :]
        self.may_begin = ()
        return True
