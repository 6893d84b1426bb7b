"""Checkpoint -> network. Everything that can be refused by name is refused before the first weight is read."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import pages
from ..core.errors import InvalidRequest, Unsupported
from ..core.log import event, get_logger
from ..core.platform import detect
from ..kernels.native.build import library
from ..kernels.ops.matmul import linear
from ..quant.detect import detect as format_of
from ..quant.on_load import ROUNDINGS
from .attention.base import choose
from .base import Build, Decoder, ModelSpec
from .checkpoint import Checkpoint
from .compare import about, compare, compare_twins
from .opened import Opened, open_model
from .parallel import OneRank
from .source import Source
from .wanted import Wanted

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
AHEAD = 3  # tensors read while one is being packed: keeps two cores busy, costs little memory

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """All about a network but its weights."""

    opened: Opened
    checkpoint: Checkpoint
    build: Build
    decoder: Decoder


def load_model(
    source: Source,
    *,
    dtype: torch.dtype | str = "auto",
    device: torch.device,
    max_model_len: int | None = None,
    trust_remote_code: bool = False,
    attention_backend: str = "auto",
    quantization: str | None = None,
) -> Decoder:
    """The network of `source` with its weights on `device`.

    `dtype` "auto" is what the config says, else what the weights are stored in (bfloat16 for quantised GGUF files).
    `max_model_len` bounds the positions and fixes RoPE scaling that depends on a length (see layers/rotary.py); None =
    what the config is made for. Raises Unsupported or NotFound for what cannot be loaded, InvalidRequest for a
    max_model_len over what the config allows. `quantization` int8, int4 or fp8 rounds a plain checkpoint first
    (requantise.py); else it names what the checkpoint is, and is checked.
    """
    started = time.monotonic()
    if quantization in ROUNDINGS:
        from .requantise import requantised  # which plans a network, as this file does

        source, quantization = requantised(source, quantization, trust_remote_code=trust_remote_code), None
    plan = plan_model(
        source,
        dtype=dtype,
        device=device,
        max_model_len=max_model_len,
        trust_remote_code=trust_remote_code,
        quantization=quantization,
    )
    decoder, spec = plan.decoder, plan.decoder.spec
    if spec.dtype == torch.float16 and device.type == "cpu":
        log.warning(event("dtype_is_slow", dtype="float16", device="cpu", quicker="bfloat16 or float32"))
    choose(attention_backend, decoder.attention_specs, detect("cpu" if device.type == "cpu" else "cuda"))
    with about(source.path):
        compare_twins(plan.build.wanted, plan.checkpoint)
        _fill(plan.build.wanted, plan.checkpoint)
    pages.give_back()
    log.info(
        event(
            "model_loaded",
            architecture=spec.architecture,
            source=source.path,
            dtype=str(spec.dtype).removeprefix("torch."),
            max_position=spec.max_position,
            weight_bytes=decoder.weight_bytes,
            kernels=_kernels(device),
            seconds=round(time.monotonic() - started, 2),
        )
    )
    return decoder


def plan_model(
    source: Source,
    *,
    dtype: torch.dtype | str = "auto",
    device: torch.device,
    max_model_len: int | None = None,
    trust_remote_code: bool = False,
    quantization: str | None = None,
) -> Plan:
    """The network of `source` still without weights, and where they will come from. Arguments are those of load_model.

    On the device `meta` it takes no memory. Raises what load_model raises, for all that is wrong by name, shape or
    dtype; no weight is read.
    """
    with about(source.path):
        opened = open_model(source, trust_remote_code=trust_remote_code)
        if quantization in ROUNDINGS:
            from .requantise import foreseen

            opened, quantization = foreseen(source, opened, quantization, trust_remote_code=trust_remote_code), None
        opened.family.check(opened.config)
        reader = format_of(opened.quantization, quantization)
        num_positions = _num_positions(opened, max_model_len)
        checkpoint = opened.checkpoint()
        quant = reader.from_checkpoint(opened.quantization or {}, checkpoint.stored)
        build = Build(_dtype(opened, checkpoint, dtype), device, quant, OneRank(), num_positions)
        with device if device.type == "meta" else nullcontext():  # else tables would be made and thrown away
            decoder = opened.family.build(spec_of(opened, build.dtype, num_positions), build)
        compare(build.wanted, checkpoint, quant)
        return Plan(opened, checkpoint, build, decoder)


def spec_of(opened: Opened, dtype: torch.dtype, num_positions: int) -> ModelSpec:
    """The facts of the network that `opened` describes."""
    config = opened.config
    return ModelSpec(
        opened.architecture,
        config.hidden_size,
        config.num_hidden_layers,
        config.vocab_size,
        num_positions,
        dtype,
        opened.eos_token_ids(),
        config,
        opened.generation_config,
        opened.identity,
    )


def _num_positions(opened: Opened, max_model_len: int | None) -> int:
    rope = opened.family.rope(opened.config)
    if max_model_len is None:
        return rope.usual
    if max_model_len > rope.longest:
        raise InvalidRequest(
            f"max_model_len {max_model_len} is over the {rope.longest} positions that the model's config allows",
            param="max_model_len",
        )
    return max_model_len


def _dtype(opened: Opened, checkpoint: Checkpoint, asked: torch.dtype | str) -> torch.dtype:
    names = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
    if isinstance(asked, str) and asked != "auto" and asked not in names:
        raise InvalidRequest(f"no dtype {asked!r}; there are auto, {', '.join(names)}", param="dtype")
    if isinstance(asked, str):
        asked = names.get(asked) or _own_dtype(opened, checkpoint)
    if asked not in DTYPES:
        raise Unsupported(f"no weights in {asked}; there are {', '.join(names)} (--dtype)", param="dtype")
    return asked


def _own_dtype(opened: Opened, checkpoint: Checkpoint) -> torch.dtype:
    """The config's dtype, else that of a weight matrix; bfloat16 where that is quantised."""
    stated: torch.dtype | None = getattr(opened.config, "dtype", None)
    matrix = next((each for name, each in checkpoint.stored.items() if name.endswith("q_proj.weight")), None)
    found = torch.float32 if matrix is None else matrix.dtype
    return stated or (found if found in DTYPES and isinstance(found, torch.dtype) else torch.bfloat16)


def _kernels(device: torch.device) -> str:
    """Whose kernels compute: of those for the CPU, which variant; torch where there are no faster ones."""
    providers = linear.providers()
    if device.type == "cpu":
        return library().variant if "native" in providers else "torch"
    return "triton" if "triton" in providers else "torch"


def _fill(wanted: Mapping[str, Wanted], checkpoint: Checkpoint) -> None:
    """Read in the network's order, so that each layer is packed, and its raw tensors freed, as soon as it is whole."""
    for (name, want), tensor in zip(wanted.items(), _ahead(checkpoint, wanted), strict=True):
        with about(checkpoint.file_of(name)):
            want.put(tensor)


def _ahead(checkpoint: Checkpoint, names: Iterable[str]) -> Iterator[Tensor]:
    """Each tensor in order; another thread reads (and unpacks) a few ahead."""
    with ThreadPoolExecutor(1, thread_name_prefix="read-weights") as reader:
        pending: deque[Future[Tensor]] = deque()
        for name in names:
            pending.append(reader.submit(checkpoint.read, name))
            if len(pending) > AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
