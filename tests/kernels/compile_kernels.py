"""Compile every Triton kernel for one target without its device: `python compile_kernels.py sm_90`.

The wrappers are called on the ops' large cases and on weights in codes of a served model's size, so what is compiled is
what serving launches; a launch compiles for a driver that claims to be the target, and runs nothing. Prints one JSON
line a kernel: its name, case, the bytes of scratch memory that a thread spills to, the bound stated beside the kernel,
and the bytes of shared memory of a program. Runs in a process of its own: TRITON_INTERPRET must not be set, and the
driver is the process's only one.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import aril.kernels.triton as provider
import torch
import triton
from aril.kernels import dispatch
from aril.kernels.cases import Case, Inputs
from aril.kernels.ops.grouped import GroupedWeight, Groups
from aril.kernels.ops.int8 import Int8Weight
from aril.kernels.triton.runs import in_runs
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SPILLS = {("gfx942", "Q2_K, 64 rows"): 40}  # bytes a thread, where a case is known to exceed its kernel's bound
SIZE = 4096  # of the weights in codes, both ways


class AbsentDevice:
    """What a launch asks of a driver before it compiles."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target


class Launches(list[tuple[JITFunction, Any]]):
    """Every kernel launched while active, compiled and not run."""

    def __enter__(self) -> Launches:
        self._run = JITFunction.run
        JITFunction.run = lambda kernel, *args, **options: self._compile(kernel, args, options)
        return self

    def __exit__(self, *exception: object) -> None:
        JITFunction.run = self._run

    def _compile(self, kernel: JITFunction, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.append((kernel, self._run(kernel, *args, **(options | {"warmup": True}))))


def compiled_launches() -> Iterator[tuple[str, str, JITFunction, Any]]:
    """The op, the case, the kernel and its compiled form, for each large case of each op that Triton implements."""
    for module in pkgutil.iter_modules(provider.__path__):
        importlib.import_module(f"{provider.__name__}.{module.name}")
    for name, op in dispatch.ops().items():
        if "triton" not in op.impls:
            continue
        large = list(weights_in_codes()) if name == "matmul_grouped" else large_cases(op)
        assert large, f"{name} declares no large case, so nobody knows how it is launched in serving"
        for case in large:
            with Launches() as launches:
                op.impls["triton"].run(*case.args, **case.kwargs)
            yield from ((name, case.label, kernel, compiled) for kernel, compiled in launches)


def large_cases(op: dispatch.Op[..., object]) -> list[Case]:
    """Those that the op declares, in the layout of Triton's kernels."""
    assert op.case_maker is not None, f"{op.name} declares no cases"
    made = [case for case in op.case_maker(Inputs(torch.device("cpu"), torch.bfloat16)) if case.large]
    weights = [[value for value in case.args if isinstance(value, Int8Weight)] for case in made]
    return [case for case, found in zip(made, weights, strict=True) if all(weight.layout == "rows" for weight in found)]


def weights_in_codes() -> Iterator[Case]:
    """The kinds of weight that formats hand over, for one row and for as many as a large tile takes."""
    zeros = torch.zeros(SIZE // 128, SIZE, dtype=torch.uint8)
    block_scales = Groups(torch.zeros(SIZE // 128, SIZE))
    kinds = {
        "GPTQ": coded(4, 128),
        "GPTQ, act order": replace(coded(4, 128), order=torch.arange(SIZE)),
        "3 bits, zero points": replace(coded(3, 128), zeros=zeros),
        "Q5_K": replace(coded(5, 32), zeros=0, scales=two_levels(32, torch.uint8), mins=two_levels(32, torch.uint8)),
        "Q2_K": replace(coded(2, 16), zeros=0, scales=two_levels(16, torch.uint8), mins=two_levels(16, torch.uint8)),
        "Q6_K": replace(coded(6, 16), scales=two_levels(16, torch.int8)),
        "NF4": replace(coded(4, 64), zeros=0, values="table", table=torch.zeros(16)),
        "FP8 in blocks": replace(coded(8, 128), zeros=0, values="e4m3", scales=block_scales),
        "8 bits": coded(8, SIZE),
    }
    for label, weight in kinds.items():
        packed = in_runs(weight)
        for rows in (1, 64):
            told = "1 row" if rows == 1 else f"{rows} rows"
            yield Case(f"{label}, {told}", (torch.zeros(rows, SIZE, dtype=torch.bfloat16), packed))


def coded(bits: int, group: int) -> GroupedWeight:
    """Symmetric, scaled in float16."""
    codes, scales = torch.zeros(SIZE, SIZE, dtype=torch.uint8), torch.zeros(SIZE // group, SIZE, dtype=torch.float16)
    return GroupedWeight((codes,), "codes", SIZE, SIZE, bits, group, Groups(scales), zeros=1 << (bits - 1))


def two_levels(group: int, dtype: torch.dtype) -> Groups:
    """A float16 over each 256 inputs, as GGUF has it."""
    coarse = torch.zeros(SIZE // 256, SIZE, dtype=torch.float16)
    return Groups(torch.zeros(SIZE // group, SIZE, dtype=dtype), coarse, 256 // group)


def scratch_bytes(compiled: Any) -> int:
    """Bytes of local memory a thread, read from the machine code: registers that did not suffice."""
    if "amdgcn" in compiled.asm:
        return int(re.findall(r"\.private_segment_fixed_size:\s*(\d+)", compiled.asm["amdgcn"])[0])
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return max(int(size) for size in re.findall(r"(?:STACK|LOCAL):(\d+)", usage))


def main(target: str) -> None:
    triton.runtime.driver.set_active(AbsentDevice(TARGETS[target]))
    for op, case, kernel, compiled in compiled_launches():
        found = {
            "kernel": kernel.fn.__qualname__,
            "case": f"{op}: {case}",
            "scratch": scratch_bytes(compiled),
            "bound": SPILLS.get((target, case), sys.modules[kernel.fn.__module__].SPILL_BOUND),
            "shared": compiled.metadata.shared,
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
