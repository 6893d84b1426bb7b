"""A program that tries constraints out, each in a process of its own: compiling, and the first mask.

Libraries that compile what strangers write can run for minutes, take all memory, or end their process: a schema of
5,000 references in a row overflows the stack, expressions that are intersected take forever. None of that may happen
where requests are served. This process knows the vocabulary and forks for each constraint; the system ends what
passes a bound. It is told of its work over a connection, and lives until that is closed.

All but a few constraints take some milliseconds. What is not ready by then is begun anew behind the others that were
not, one at a time, so that a crowd of slow ones keeps no quick one waiting.

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
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait

import numpy as np

from ...core.errors import InvalidRequest
from . import backends
from .asked import StructuredOutputs
from .base import Backend, Busy, Refusal, Vocabulary, words_of

# Of one constraint. Tool definitions take 0.3 to 2.5 ms (llguidance; XGrammar: 17 to 140), 10,000 choices 0.25 s.
CPU_SECONDS = 0.8
SECONDS = 1.4  # by the clock, however busy the machine is: a caller is answered within two
QUICK_CPU_SECONDS = 0.05  # before it counts as slow: 16 slow ones keep a quick one waiting for half a second at most
QUICK_SECONDS = 0.5
MEMORY = 512 * 1024**2  # bytes on top of what the nursery takes
STACK = 4 * 1024**2  # bytes; the threads that compile it again have more
MOST = 2  # constraints at a time; of them one that is slow
MOST_SLOW = 16  # that wait for their turn
NICENESS = 10  # of one constraint, beside the engine: one in a row after another took 12% of its speed at 5
ENDED = {
    signal.SIGPROF: "it takes too long to compile",
    signal.SIGALRM: "it takes too long to compile",
    signal.SIGSEGV: "it is nested too deeply",
}
LATE = (signal.SIGPROF, signal.SIGALRM)
TOO_LARGE = "it takes too much memory to compile"


@dataclass(slots=True)
class _Trial:
    """One constraint on its way."""

    job: int
    asked: StructuredOutputs
    is_slow: bool = False
    process: int = 0


class Nursery:
    """The process's life."""

    def __init__(self, work: Connection, backend: Backend, num_words: int) -> None:
        self._work = work
        self._backend = backend
        self._bits = np.zeros(num_words, np.int32)
        self._quick: deque[_Trial] = deque()  # what waits, and is not known to be slow
        self._slow: deque[_Trial] = deque()
        self._children: dict[Connection, _Trial] = {}  # by what each says its answer on

    def live(self) -> None:
        """Until the connection is closed."""
        while True:
            for ready in wait([self._work, *self._children]):
                assert isinstance(ready, Connection)
                if ready is not self._work:
                    self._end(ready)
                    continue
                try:
                    self._quick.append(_Trial(*self._work.recv()))
                except EOFError:
                    return
            if self._slow and len(self._children) < MOST and not any(each.is_slow for each in self._children.values()):
                self._begin(self._slow.popleft())
            while self._quick and len(self._children) < MOST:
                self._begin(self._quick.popleft())

    def _begin(self, trial: _Trial) -> None:
        ours, theirs = Pipe(duplex=False)
        trial.process = os.fork()
        if trial.process == 0:
            self._work.close()
            ours.close()
            self._try_out(trial, theirs)
        theirs.close()
        self._children[ours] = trial

    def _end(self, child: Connection) -> None:
        trial = self._children.pop(child)
        answer: Refusal | Busy | None = None
        with suppress(EOFError):
            answer = child.recv()
        child.close()
        _, status = os.waitpid(trial.process, 0)
        if os.WIFSIGNALED(status):
            ended_by = signal.Signals(os.WTERMSIG(status))
            if ended_by in LATE and not trial.is_slow:
                self._try_again(trial)
                return
            answer = ENDED.get(ended_by, TOO_LARGE), None
        self._work.send((trial.job, answer))

    def _try_again(self, trial: _Trial) -> None:
        if len(self._slow) >= MOST_SLOW:
            self._work.send((trial.job, Busy()))
            return
        trial.is_slow = True
        self._slow.append(trial)

    def _try_out(self, trial: _Trial, result: Connection) -> None:
        """The child's life. What it says is None, or why the constraint is refused."""
        _bound()
        _bound_time(*((CPU_SECONDS, SECONDS) if trial.is_slow else (QUICK_CPU_SECONDS, QUICK_SECONDS)))

        def run() -> None:
            try:
                self._backend.compile(trial.asked).matcher().fill(self._bits)
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


def _bound_time(of_cpu: float, by_clock: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, of_cpu)
    signal.setitimer(signal.ITIMER_REAL, by_clock)


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
