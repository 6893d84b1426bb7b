"""Compile every Triton kernel for one target without its device: `python compile_kernels.py sm_90`.

The wrappers are called on the ops' large cases, so what is compiled is what serving launches; a launch compiles for a
driver that claims to be the target, and runs nothing. Prints one JSON line a kernel: its name, case, the bytes of
scratch memory that a thread spills to, and the bound stated beside the kernel. Runs in a process of its own:
TRITON_INTERPRET must not be set, and the driver is the process's only one.
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
from typing import Any

import aril.kernels.triton as provider
import torch
import triton
from aril.kernels import dispatch
from aril.kernels.cases import Inputs
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


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


def compiled_launches() -> Iterator[tuple[str, JITFunction, Any]]:
    """The case, the kernel and its compiled form, for each large case of each op that Triton implements."""
    for module in pkgutil.iter_modules(provider.__path__):
        importlib.import_module(f"{provider.__name__}.{module.name}")
    for name, op in dispatch.ops().items():
        if "triton" not in op.impls:
            continue
        assert op.case_maker is not None, f"{name} declares no cases"
        large = [case for case in op.case_maker(Inputs(torch.device("cpu"), torch.bfloat16)) if case.large]
        assert large, f"{name} declares no large case, so nobody knows how it is launched in serving"
        for case in large:
            with Launches() as launches:
                op.impls["triton"].run(*case.args, **case.kwargs)
            yield from ((f"{name}: {case.label}", kernel, compiled) for kernel, compiled in launches)


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
    for case, kernel, compiled in compiled_launches():
        bound = sys.modules[kernel.fn.__module__].SPILL_BOUND
        found = {"kernel": kernel.fn.__qualname__, "case": case, "scratch": scratch_bytes(compiled), "bound": bound}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
