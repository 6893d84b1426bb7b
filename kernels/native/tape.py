"""A run of ops, recorded once and then done again without Python between its kernels.

What a device graph is to a GPU. Kernels are recorded as calls with their arguments; the few torch functions between
them (a look-up, a copy) are called again as they were, into the same memory. Everything that a run reads must lie where
it lay when it was recorded, and no number may have been read back into Python: that is refused.

Intermediate tensors live in an Arena, which many tapes share: no two of them run at a time.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...core.errors import Unsupported
from .. import dispatch
from .build import INT, POINTER, function, library, recording

LEAST = 256  # bytes of a buffer
DATA_DEPENDENT = ("_local_scalar_dense", "nonzero", "masked_select", "item", "equal", "is_nonzero")
CASTS = ("to", "_to_copy")  # done by the copy itself
EMPTIES = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")


class Arena:
    """Buffers that come back when the tensor in them is gone, and all of them when a recording ends."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []  # of bytes
        self._free: list[tuple[int, int]] = []  # size and number of a buffer, smallest first
        self._recording = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def begin(self) -> None:
        """All buffers may be written again; what an earlier recording holds is written anew by its replay."""
        self._recording += 1
        self._free = sorted((buffer.nbytes, number) for number, buffer in enumerate(self._buffers))

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A new tensor [shape] whose numbers are anything."""
        size = int(torch.Size(shape).numel()) * dtype.itemsize
        number = self._take(max(LEAST, size))
        found = self._buffers[number][:size].view(dtype).view(shape)
        weakref.finalize(found, self._give_back, number, self._recording).atexit = False
        return found

    def _take(self, size: int) -> int:
        for at, (held, number) in enumerate(self._free):
            if held >= size:
                self._free.pop(at)
                return number
        self._buffers.append(torch.empty(1 << (size - 1).bit_length(), dtype=torch.uint8))
        return len(self._buffers) - 1

    def _give_back(self, number: int, recording: int) -> None:
        if recording == self._recording:
            insort(self._free, (self._buffers[number].nbytes, number))


class Tape:
    """A recorded run. `result` is what it returned, written anew by each replay."""

    def __init__(self, result: Any, steps: Sequence[Callable[[], None]]) -> None:
        self.result = result
        self._steps = steps

    def replay(self) -> None:
        """Do it all again."""
        for step in self._steps:
            step()


def record(run: Callable[[], Any], arena: Arena) -> Tape:
    """Do `run` and record it. Raises Unsupported, naming it, for what cannot be done again."""
    arena.begin()
    recorder = _Recorder(arena)
    with dispatch.only("native"), recording(recorder.note), recorder:
        result = run()
    recorder.cut()
    return Tape(result, recorder.steps)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Owner of the list of steps. torch tells it of every function that is called while it is entered."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Callable[[], None]] = []
        self._arena = arena
        self._words: list[bytes] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would import its compiler, for a second and 100 MB, to keep it away from `__torch_dispatch__`."""
        return False

    def note(self, name: str, parameters: Sequence[type], arguments: Sequence[Any]) -> None:
        """A kernel is called."""
        try:
            taped = ctypes.cast(library()[f"{name}_taped"], ctypes.c_void_p).value
        except AttributeError as error:
            raise Unsupported(f"{name} cannot be called from a tape") from error
        kinds = "".join("q" if kind in (INT, POINTER) else "d" for kind in parameters)
        values = (0 if value is None else value for value in arguments)
        self._words.append(struct.pack(f"=Qq{kinds}", taped, len(parameters), *values))

    def cut(self) -> None:
        """Kernels so far are one step."""
        if self._words:
            words = b"".join(self._words)
            tape = (ctypes.c_uint64 * (len(words) // 8)).from_buffer_copy(words)
            self.steps.append(partial(_replay, tape, len(tape)))
            self._words = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name, schema = func._schema.name.rpartition("::")[2], func._schema
        if name in DATA_DEPENDENT:
            raise Unsupported(f"{name} reads numbers back into Python")
        result = func(*args, **kwargs)
        if name in EMPTIES:
            return self._arena.empty(result.shape, result.dtype)
        if schema.is_mutable:
            self.cut()
            self.steps.append(partial(_do, func, args, kwargs))
            return result
        if _is_view(result, args):
            for view in tree_leaves(result):
                view._is_part_of = args[0]  # which stays in its buffer for as long
            return result
        self.cut()
        kept = self._kept(result)
        again = partial(_do_into, kept, func, args, kwargs)
        self.steps.append(partial(kept.copy_, args[0]) if name in CASTS else again)
        return kept

    def _kept(self, result: Any) -> Any:
        """The tensors of a result in buffers, where the next ones will be put."""
        if isinstance(result, Tensor):
            return self._arena.empty(result.shape, result.dtype).copy_(result)
        return tuple(map(self._kept, result))


def _is_view(result: Any, args: Sequence[Any]) -> bool:
    """Whether it lies in the memory of the first argument. What the schema says is not enough: `flatten` may copy."""
    places = {each.untyped_storage().data_ptr() for each in tree_leaves(result) if isinstance(each, Tensor)}
    return isinstance(args[0], Tensor) and places == {args[0].untyped_storage().data_ptr()}


def _do(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    func(*args, **kwargs)


def _do_into(kept: Any, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    new = func(*args, **kwargs)
    if isinstance(kept, Tensor):
        kept.copy_(new)
        return
    for to, each in zip(kept, new, strict=True):
        to.copy_(each)


_replay = function("aril_replay", POINTER, INT)
