"""Grammars: constraints made ready, once for each content, on threads of their own; those that were refused too."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from weakref import WeakValueDictionary

from ...core.errors import InvalidRequest, Unsupported
from .asked import StructuredOutputs
from .backends import REGISTRY
from .base import Backend, Grammar, Vocabulary
from .guard import Guard
from .spanned import SpannedGrammar

KEPT = 64  # constraints, those in use aside; the states of a large one take some MB
NICENESS = 5  # of the threads that compile, beside the engine's
THREADS = 32  # that make constraints ready, begun as needed: more than may wait for the nursery because they are slow


@dataclass(frozen=True, slots=True)
class _Tools:
    """What compiling takes."""

    guard: Guard
    backend: Backend
    vocabulary: Vocabulary


class Grammars:
    """Owner of the compiled grammars of one vocabulary. Any thread may ask.

    Before the first constraint, or `start`, neither is the vocabulary gathered nor the nursery begun.
    """

    def __init__(self, backend: str, vocabulary: Callable[[], Vocabulary]) -> None:
        """Raises Unsupported for a backend that there is not, or that is not installed."""
        try:
            self._kind = REGISTRY[backend]
        except ImportError as error:
            raise Unsupported(f"the grammar backend {backend} is not installed: pip install {backend}") from error
        self._name = backend
        self._vocabulary = vocabulary
        self._lock = threading.Lock()  # of all that follows
        self._recent: OrderedDict[StructuredOutputs, Future[Grammar]] = OrderedDict()
        self._in_use: WeakValueDictionary[StructuredOutputs, Grammar] = WeakValueDictionary()
        self._threads: ThreadPoolExecutor | None = None
        self._tools: Future[_Tools] | None = None

    @property
    def num_kept(self) -> int:
        """Constraints that are remembered, the refused ones included."""
        return len(self._recent)

    @property
    def nursery_pid(self) -> int:
        """The process where constraints are tried out, once there is one."""
        assert self._tools is not None
        return self._tools.result().guard.pid

    def of(self, asked: StructuredOutputs) -> Future[Grammar]:
        """The grammar, once it is ready; InvalidRequest for one that is refused. Who uses it holds on to it."""
        with self._lock:
            found = self._recent.get(asked) or self._held(asked)
            if found is None:
                found = self._begin(asked)
            self._recent[asked] = found
            self._recent.move_to_end(asked)
            while len(self._recent) > KEPT:
                self._recent.popitem(last=False)
            return found

    def found(self, asked: StructuredOutputs) -> Grammar:
        """A grammar that somebody holds, and which is ready."""
        return self.of(asked).result()

    def start(self) -> None:
        """Have all that the first constraint will need made ready on another thread."""
        with self._lock:
            self._ready()

    def close(self) -> None:
        """End threads and processes; nothing may be asked afterwards."""
        with self._lock:
            tools, pool, self._threads = self._tools, self._threads, None
        _end_guard(tools)  # first, as threads wait for its answers
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        _end_guard(tools)  # which may have been made meanwhile

    def _held(self, asked: StructuredOutputs) -> Future[Grammar] | None:
        grammar = self._in_use.get(asked)
        if grammar is None:
            return None
        done: Future[Grammar] = Future()
        done.set_result(grammar)
        return done

    def _begin(self, asked: StructuredOutputs) -> Future[Grammar]:
        tools = self._ready()
        assert self._threads is not None
        return self._threads.submit(self._compile, asked, tools)

    def _ready(self) -> Future[_Tools]:
        """The tools, made on the first thread of the pool."""
        if self._tools is None:
            self._threads = ThreadPoolExecutor(THREADS, "grammar", initializer=_yield_to_others)
            self._tools = self._threads.submit(self._make_tools)
        return self._tools

    def _make_tools(self) -> _Tools:
        vocabulary = self._vocabulary()
        guard = Guard(self._name, vocabulary)
        assert self._threads is not None
        started = self._threads.submit(guard.start)
        try:
            backend = self._kind(vocabulary)
            started.result()
            return _Tools(guard, backend, vocabulary)
        except BaseException:
            guard.close()
            raise

    def _compile(self, asked: StructuredOutputs, made: Future[_Tools]) -> Grammar:
        try:
            tools = made.result()
            tools.guard.check(asked)
            grammar = tools.backend.compile(asked)
            if asked.spans is not None:
                grammar = SpannedGrammar(asked, grammar, tools.vocabulary)
        except InvalidRequest:
            raise  # it stays wrong: whoever asks again is told at once
        except BaseException:
            with self._lock:
                self._recent.pop(asked, None)
            raise
        with self._lock:
            self._in_use[asked] = grammar
        return grammar


def _end_guard(tools: Future[_Tools] | None) -> None:
    if tools is not None and tools.done() and not tools.cancelled() and tools.exception() is None:
        tools.result().guard.close()


def _yield_to_others() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
