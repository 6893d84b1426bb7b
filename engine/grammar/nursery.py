"""A program that tries constraints out, each in a process of its own: compiling, and the first mask.

Libraries that compile what strangers write can run for minutes, take all memory, or end their process: a schema of
5,000 references in a row overflows the stack, expressions that are intersected take forever. None of that may happen
where requests are served. This process knows the vocabulary and forks for each constraint; the system ends what
passes a bound. It is told of its work over a connection, and lives until that is closed.

    python -m aril.engine.grammar.nursery FD
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait

import numpy as np

from ...core.errors import InvalidRequest
from . import backends
from .asked import StructuredOutputs
from .base import Backend, Refusal, Vocabulary, words_of

CPU_SECONDS = 0.8  # of one constraint; tool definitions take some milliseconds
SECONDS = 1.4  # by the clock, however busy the machine is: a caller is answered within two
MEMORY = 512 * 1024**2  # bytes on top of what the nursery takes
STACK = 4 * 1024**2  # bytes; the threads that compile it again have more
MOST = 2  # constraints at a time
NICENESS = 10  # of one constraint, beside the engine: one in a row after another took 12% of its speed at 5
ENDED = {
    signal.SIGPROF: "it takes too long to compile",
    signal.SIGALRM: "it takes too long to compile",
    signal.SIGSEGV: "it is nested too deeply",
}
TOO_LARGE = "it takes too much memory to compile"


class Nursery:
    """The process's life."""

    def __init__(self, work: Connection, backend: Backend, num_words: int) -> None:
        self._work = work
        self._backend = backend
        self._bits = np.zeros(num_words, np.int32)
        self._waiting: deque[tuple[int, StructuredOutputs]] = deque()
        self._children: dict[Connection, tuple[int, int]] = {}  # by what each says its answer on: job, process

    def live(self) -> None:
        """Until the connection is closed."""
        while True:
            for ready in wait([self._work, *self._children]):
                assert isinstance(ready, Connection)
                if ready is not self._work:
                    self._end(ready)
                    continue
                try:
                    self._waiting.append(self._work.recv())
                except EOFError:
                    return
            while self._waiting and len(self._children) < MOST:
                self._begin(*self._waiting.popleft())

    def _begin(self, job: int, asked: StructuredOutputs) -> None:
        ours, theirs = Pipe(duplex=False)
        child = os.fork()
        if child == 0:
            self._work.close()
            ours.close()
            self._try_out(asked, theirs)
        theirs.close()
        self._children[ours] = job, child

    def _end(self, child: Connection) -> None:
        job, process = self._children.pop(child)
        answer: Refusal | None = None
        with suppress(EOFError):
            answer = child.recv()
        child.close()
        _, status = os.waitpid(process, 0)
        if os.WIFSIGNALED(status):
            answer = ENDED.get(signal.Signals(os.WTERMSIG(status)), TOO_LARGE), None
        self._work.send((job, answer))

    def _try_out(self, asked: StructuredOutputs, result: Connection) -> None:
        """The child's life. What it says is None, or why the constraint is refused."""
        _bound()

        def run() -> None:
            try:
                self._backend.compile(asked).matcher().fill(self._bits)
            except InvalidRequest as error:
                result.send((error.message, error.param))
            except MemoryError:
                result.send((TOO_LARGE, None))
            except RecursionError:
                result.send(("it is nested too deeply", None))
            except BaseException as error:
                result.send((f"it cannot be compiled: {error!r:.300}", None))
            else:
                result.send(None)

        threading.stack_size(STACK)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        os._exit(0)


def _bound() -> None:
    """Limits that the system holds this process to."""
    os.nice(NICENESS)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm") as sizes:
        taken = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)


def main() -> None:
    """Learn the vocabulary, say so, and work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    work = Connection(int(sys.argv[1]))
    name, vocabulary = work.recv()
    assert isinstance(vocabulary, Vocabulary)
    nursery = Nursery(work, backends.REGISTRY[name](vocabulary), words_of(len(vocabulary.tokens)))
    work.send(None)
    nursery.live()


if __name__ == "__main__":
    with suppress(BrokenPipeError, ConnectionResetError, EOFError):
        main()
