"""The Triton provider: CUDA and HIP devices, or CPU tensors in Triton's interpreter (TRITON_INTERPRET=1, for tests)."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

from ...core.platform import Platform

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
AUTOMATIC = not INTERPRETED  # interpreted kernels are thousands of times slower than the reference

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NEEDS = "float32, float16 or bfloat16 on a CUDA or HIP device"


def refuses(platform: Platform) -> str | None:
    """Why no Triton kernel can run on this machine."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if platform.kind == "cpu" and not INTERPRETED:
        return "no CUDA or HIP device"
    return None


def takes(x: Tensor) -> bool:
    """Whether `x` lies where Triton kernels run, in a dtype that they compute with."""
    return (x.is_cuda or INTERPRETED) and x.dtype in DTYPES
