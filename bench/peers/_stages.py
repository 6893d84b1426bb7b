"""The cases by name, and the stages that they need: what is loaded together and then run in turn."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ..race import Case
from ._peer import Stage

ONE, MANY = Case(1), Case(16)
PREFILL = Case(1, 0, 2047, 1)  # 2,048 positions, the most that all are told to expect
MIXED, WIDE = Case(16, 8), Case(16, 16)
START = "start"  # time to ready and resident memory, of processes started again and again

PLAIN, SMALL, LARGE, INT4 = "bf16", "rank16", "rank64", "int4"
CASES: Mapping[str, Mapping[str, Collection[Case]]] = {  # name on the command line -> stage -> its cases
    "one": {PLAIN: (ONE,)},
    "many": {PLAIN: (MANY,)},
    "prefill": {PLAIN: (PREFILL,)},
    "mixed": {SMALL: (MIXED, MANY)},  # the base's rows: what Aril without adapters stands for
    "idle": {SMALL: (MANY,)},
    "wide": {LARGE: (WIDE, MANY)},
    "int4": {"int4, 1 thread": (ONE,), "int4": (ONE,)},
    START: {START: (MANY,)},
}


def stages(names: Collection[str], threads: int, input_len: int, output_len: int) -> list[Stage]:
    """Those that the cases called `names` need, of rows of these lengths."""
    known = {
        PLAIN: Stage(PLAIN, "bf16", threads, ()),
        SMALL: Stage(SMALL, "bf16", threads, (), (8, 16)),
        LARGE: Stage(LARGE, "bf16", threads, (), (16, 64)),
        "int4, 1 thread": Stage("int4, 1 thread", "int4", 1, ()),
        "int4": Stage("int4", "int4", threads, ()),
        START: Stage(START, "bf16", threads, ()),
    }
    found = []
    for name, stage in known.items():
        cases = dict.fromkeys(case for asked in names for case in CASES[asked].get(name, ()))
        if cases:
            found.append(replace(stage, cases=tuple(sized(case, input_len, output_len) for case in cases)))
    return found


def sized(case: Case, input_len: int, output_len: int) -> Case:
    """A case of rows of these lengths; a prefill stays as long as it is."""
    return case if case == PREFILL else replace(case, input_len=input_len, output_len=output_len)
