"""Bytes that come in pieces, read as one file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO, cast


def reading(pieces: Iterator[bytes]) -> BinaryIO:
    """The pieces, one after the other, as a stream; they are asked for as they are read."""
    return cast(BinaryIO, io.BufferedReader(_Pieces(pieces)))


class _Pieces(io.RawIOBase):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what BufferedReader calls it with
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size
