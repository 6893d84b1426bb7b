"""Guard: has every constraint tried out in the nursery before this process compiles it."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from multiprocessing.connection import Connection, Pipe

from ...core.errors import InvalidRequest, Unavailable
from .asked import StructuredOutputs
from .base import Busy, Refusal, Vocabulary

PATIENCE = 60.0  # seconds for a nursery that lives to answer; behind all slow ones that may wait it takes half
START_PATIENCE = 120.0  # seconds for a nursery to begin, which imports the library and reads the vocabulary
ENDED = "the process that tries constraints out ended; try again"


class Guard:
    """Owner of one nursery, which starts with the first constraint and again if it ends. Any thread may ask."""

    def __init__(self, backend: str, vocabulary: Vocabulary) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._lock = threading.Lock()  # of all that follows
        self._nursery: _Nursery | None = None
        self._closed = False

    @property
    def pid(self) -> int:
        """Of the nursery that was begun last."""
        assert self._nursery is not None
        return self._nursery.pid

    def check(self, asked: StructuredOutputs) -> None:
        """Raises InvalidRequest for what cannot be compiled within the bounds, Unavailable when it cannot be told."""
        with self._lock:
            answer = self._started().try_out(asked)
        try:
            why: Refusal | Busy | None = answer.result(PATIENCE)
        except NotInTime:
            why = Busy()
        if isinstance(why, Busy):
            raise Unavailable("too many constraints are waiting to be compiled; try again", code="compiler_busy")
        if why is not None:
            words, param = why
            raise asked.refused(words) if param is None else InvalidRequest(words, param=param)

    def start(self) -> None:
        """Have the nursery begin, if it has not."""
        with self._lock:
            self._started()

    def close(self) -> None:
        """End the nursery; nothing may be asked afterwards."""
        with self._lock:
            self._closed = True
            if self._nursery is not None:
                self._nursery.end()

    def _started(self) -> _Nursery:
        """A nursery that lives, as far as anybody knows."""
        if self._closed:
            raise Unavailable("the engine was closed")
        if self._nursery is None or self._nursery.ended:
            self._nursery = _Nursery(self._backend, self._vocabulary)
        return self._nursery


class _Nursery:
    """One process, and the jobs that it has not answered."""

    def __init__(self, backend: str, vocabulary: Vocabulary) -> None:
        """Raises Unavailable when it does not begin."""
        self._work, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.nursery", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._jobs: dict[int, Future[Refusal | Busy | None]] = {}
        self._num_jobs = 0
        self._hung_up = False
        try:
            _introduce(self._work, backend, vocabulary)
        except (EOFError, OSError):
            self.end()
            raise Unavailable("the process that tries constraints out did not start; the log says why") from None
        threading.Thread(target=self._listen, name="grammar-guard", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it is known to be no more, or to be ending: one that was killed hangs up a little before."""
        return self._hung_up or self._process.poll() is not None

    def try_out(self, asked: StructuredOutputs) -> Future[Refusal | Busy | None]:
        """Why `asked` is refused, when that is known; None: it is not."""
        answer: Future[Refusal | Busy | None] = Future()
        self._num_jobs += 1
        self._jobs[self._num_jobs] = answer
        try:
            self._work.send((self._num_jobs, asked))
        except OSError:  # it is ending, and the listener may have told its last
            self._hung_up = True
            self._lose()
        return answer

    def end(self) -> None:
        """Kill it; who waits for an answer is told."""
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        """A thread's life: answers go to those who wait for them."""
        try:
            while True:
                job, why = self._work.recv()
                if (answer := self._jobs.pop(job, None)) is not None:
                    answer.set_result(why)
        except (EOFError, OSError):
            self._hung_up = True
            self.end()
            self._lose()

    def _lose(self) -> None:
        """Tell all who wait that nobody will answer. Two threads may, and each job is told once."""
        while self._jobs:
            try:
                _, answer = self._jobs.popitem()
            except KeyError:
                return
            answer.set_exception(Unavailable(ENDED))


def _introduce(work: Connection, backend: str, vocabulary: Vocabulary) -> None:
    work.send((backend, vocabulary))
    if not work.poll(START_PATIENCE):
        raise EOFError
    work.recv()
