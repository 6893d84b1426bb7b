"""What a peer is: the packages of its environment, and the processes that it enters a stage with.

A stage is what engines are loaded for once: a form of the base, adapters, threads; its cases run on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..race import Case

ARIL = "aril"
BARE = "aril, no adapters"  # beside the one that has them loaded


@dataclass(frozen=True, slots=True)
class Stage:
    """`shape` is of the adapters: how many, and of which rank."""

    name: str
    weights: Literal["bf16", "int4"]
    threads: int
    cases: tuple[Case, ...]
    shape: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Base:
    """The files of a stage: the base as a Hugging Face folder in bfloat16 and as a .gguf file, name -> adapter."""

    folder: Path
    gguf: Path
    adapters: Mapping[str, str]
    kv_bytes: int
    max_model_len: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Engine:
    """One process: the first job of a program in bench/workers, which writes down every setting, and its variables."""

    name: str
    program: str
    job: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    adapters: Sequence[str] = ()
    cases: tuple[Case, ...] | None = None  # None: all that it has the adapters for


@dataclass(frozen=True, slots=True)
class Peer:
    """`engines` is asked with the peer's folder, in which its environment lies and `prepare` leaves what it converts.

    `pins` are requirements for pip, none for a peer that runs in Aril's own environment; `unwanted` are packages that
    they bring and that get in the way; `debs` are Debian packages with libraries to preload, unpacked, not installed.
    """

    engines: Callable[[Stage, Base, Path], Sequence[Engine]]
    pins: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    debs: tuple[str, ...] = ()
    prepare: Callable[[Base, Path], None] = lambda base, home: None
