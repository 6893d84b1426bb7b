"""The two files of `aril run-batch`: requests in, answers out. What is in the second already is not asked again."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from ..core.batch_lines import REPLY_START, Checked, Line, Reply, id_in
from ..core.errors import InvalidRequest


class Requests:
    """A file of requests. Raises InvalidRequest naming the first line at fault."""

    def __init__(self, path: Path, urls: Collection[str]) -> None:
        self.path = path
        self._urls = urls
        self._checked = Checked()
        for number, raw in self._raw():
            self._checked.look(raw, number, urls)
            self._refuse()
        self._checked.close()
        self._refuse()

    def __len__(self) -> int:
        return self._checked.total

    def __contains__(self, custom_id: object) -> bool:
        return isinstance(custom_id, str) and self._checked.asks_for(custom_id)

    async def besides(self, done: Collection[str]) -> AsyncIterator[Line]:
        """The lines whose ids are not `done`."""
        for number, raw in self._raw():
            line = Line.of(raw, number, self._urls)
            if line.custom_id not in done:
                yield line

    def _raw(self) -> Iterator[tuple[int, bytes]]:
        try:
            with self.path.open("rb") as file:
                yield from ((number, raw) for number, raw in enumerate(file, 1) if raw.strip())
        except OSError as error:
            raise InvalidRequest(f"-i {self.path}: {error.strerror}", param="input_file") from None

    def _refuse(self) -> None:
        for error in self._checked.errors:
            raise InvalidRequest(f"-i {self.path}: {error.message}", param="input_file", code=error.code)


class Answers:
    """A file of answers, which grows line by line. An answer at its end that was cut short is dropped."""

    def __init__(self, path: Path, requests: Requests) -> None:
        """Raises InvalidRequest for a file that cannot be written, or holds anything but answers to `requests`."""
        self._path = path
        try:
            if path.exists() and path.samefile(requests.path):
                raise InvalidRequest(f"-o {path}: this is the input; give another file", param="output_file")
            self._file: BinaryIO = path.open("a+b")
        except OSError as error:
            raise InvalidRequest(f"-o {path}: {error.strerror}", param="output_file") from None
        self.done = self._read(requests)
        self.num_failed = 0

    def add(self, reply: Reply) -> None:
        """One more; it is in the system's hands on return."""
        self._file.write(reply.text)
        self._file.flush()
        self.num_failed += not reply.ok

    def close(self) -> None:
        """With all of it on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _read(self, requests: Requests) -> set[str]:
        done = set[str]()
        self._file.seek(0)
        end = 0
        for number, raw in enumerate(self._file, 1):
            is_torn = not raw.endswith(b"\n")
            if is_torn and raw[: len(REPLY_START)] == REPLY_START[: len(raw)]:
                break
            custom_id = id_in(raw)
            if is_torn or custom_id not in requests:
                message = f"line {number} is no answer to a request of the input; give a file of its own to each input"
                raise InvalidRequest(f"-o {self._path}: {message}", param="output_file")
            done.add(str(custom_id))
            end += len(raw)
        self._file.truncate(end)
        return done
