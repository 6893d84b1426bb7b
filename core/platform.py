"""Which machine this is. The only file that asks; everything below the wiring receives the answer as an object."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

import torch

from .errors import Unsupported


@dataclass(frozen=True, slots=True)
class Platform:
    """One kind of device. `kind`: cpu, cuda or hip; `arch`: x86_64, sm_90, gfx942 and so on; memory in bytes."""

    kind: str
    arch: str
    memory: int
    has_triton: bool

    @property
    def device(self) -> torch.device:
        """Where tensors live; torch calls a HIP device `cuda` too."""
        return torch.device("cpu") if self.kind == "cpu" else torch.device("cuda", torch.cuda.current_device())

    def free_memory(self) -> int:
        """Bytes that can still be allocated on the device now."""
        return _available_ram() if self.kind == "cpu" else torch.cuda.mem_get_info()[0]

    def synchronize(self) -> None:
        """Wait until the device has done all it was given."""
        if self.kind != "cpu":
            torch.cuda.synchronize()


def detect(device: str = "auto") -> Platform:
    """The platform of `auto`, `cpu` or `cuda`; raises Unsupported when there is no such device here."""
    if device not in ("auto", "cpu", "cuda"):
        raise Unsupported(f"no device {device!r}; there are auto, cpu, cuda", param="device")
    if device != "cpu" and torch.cuda.is_available():
        return _gpu()
    if device == "cuda":
        raise Unsupported("--device cuda: this machine has no CUDA or HIP device that torch can see", param="device")
    return Platform("cpu", os.uname().machine, _total_ram(), has_triton=False)


def usable_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _gpu() -> Platform:
    properties = torch.cuda.get_device_properties(0)
    has_triton = importlib.util.find_spec("triton") is not None
    if torch.version.hip:
        return Platform("hip", properties.gcnArchName.split(":")[0], properties.total_memory, has_triton)
    return Platform("cuda", f"sm_{properties.major}{properties.minor}", properties.total_memory, has_triton)


def _total_ram() -> int:
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), _cgroup_limit())


def _available_ram() -> int:
    with open("/proc/meminfo") as lines:
        fields = dict(line.split(":", 1) for line in lines)
    return min(int(fields["MemAvailable"].split()[0]) * 1024, _cgroup_limit())


def _cgroup_limit() -> int:
    try:
        with open("/sys/fs/cgroup/memory.max") as f:
            text = f.read().strip()
    except OSError:
        return 1 << 62
    return 1 << 62 if text == "max" else int(text)
