"""Checkpoint -> network. Everything that can be refused by name is refused before the first weight is read."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from ..core.errors import InvalidRequest, Unsupported
from ..core.log import event, get_logger
from ..core.platform import detect
from ..quant.detect import detect as detect_format
from .attention.base import choose
from .base import Build, Decoder, ModelSpec
from .checkpoint import Checkpoint
from .opened import Opened, open_model
from .parallel import OneRank
from .source import Source
from .wanted import Wanted

HARMLESS = re.compile(r"(^|\.)rotary_emb\.inv_freq$")  # written by older transformers; follows from the config
TIED = {"lm_head.weight": "model.embed_tokens.weight"}  # a tied head that is stored all the same
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
AHEAD = 3  # tensors read while one is being packed: keeps two cores busy, costs little memory
SHOWN = 8  # names in an error

log = get_logger(__name__)


def load_model(
    source: Source,
    *,
    dtype: torch.dtype | str = "auto",
    device: torch.device,
    max_model_len: int | None = None,
    trust_remote_code: bool = False,
    attention_backend: str = "auto",
) -> Decoder:
    """The network of `source` with its weights on `device`.

    `dtype` "auto" is what the config says, else what the weights are stored in (bfloat16 for quantised GGUF files).
    `max_model_len` bounds the positions and fixes RoPE scaling that depends on a length (see layers/rotary.py); None =
    what the config is made for. Raises Unsupported or NotFound for what cannot be loaded, InvalidRequest for a
    max_model_len over what the config allows.
    """
    started = time.monotonic()
    opened = open_model(source, trust_remote_code=trust_remote_code)
    opened.family.check(opened.config)
    quant = detect_format(opened.quantization)
    num_positions = _num_positions(opened, max_model_len)
    checkpoint = opened.checkpoint()
    chosen = _dtype(opened, checkpoint, dtype)
    if chosen == torch.float16 and device.type == "cpu":
        log.warning(event("dtype_is_slow", dtype="float16", device="cpu", quicker="bfloat16 or float32"))
    build = Build(chosen, device, quant, OneRank(), num_positions)
    decoder = opened.family.build(_spec(opened, chosen, num_positions), build)
    choose(attention_backend, decoder.attention_specs, detect("cpu" if device.type == "cpu" else "cuda"))
    _compare(build.wanted, checkpoint)
    _fill(build.wanted, checkpoint)
    log.info(
        event(
            "model_loaded",
            architecture=opened.architecture,
            source=source.path,
            dtype=str(chosen).removeprefix("torch."),
            max_position=num_positions,
            weight_bytes=decoder.weight_bytes,
            seconds=round(time.monotonic() - started, 2),
        )
    )
    return decoder


def _spec(opened: Opened, dtype: torch.dtype, num_positions: int) -> ModelSpec:
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
    """The config's dtype, else that of a weight matrix."""
    stated: torch.dtype | None = getattr(opened.config, "dtype", None)
    matrix = next((name for name in checkpoint.shapes if name.endswith("q_proj.weight")), None)
    return stated or (torch.float32 if matrix is None else checkpoint.dtype(matrix))


def _compare(wanted: Mapping[str, Wanted], checkpoint: Checkpoint) -> None:
    """Every wanted tensor is there in its shape, and nothing is there that nobody wants."""
    held = {name: shape for name, shape in checkpoint.shapes.items() if not HARMLESS.search(name)}
    for copy, original in TIED.items():
        if copy in held and copy not in wanted and original in held:
            if not torch.equal(checkpoint.read(copy), checkpoint.read(original)):
                raise Unsupported(
                    f"the config ties {copy} to {original}, but the checkpoint holds two different tensors",
                    param="model",
                )
            del held[copy]
    wrong = [
        f"{name} {held[name]} instead of {w.shape}" for name, w in wanted.items() if held.get(name, w.shape) != w.shape
    ]
    problems = [
        *_listed("missing", wanted.keys() - held.keys()),
        *_listed("not part of this architecture", held.keys() - wanted.keys()),
        *_listed("of another shape", wrong),
    ]
    if problems:
        raise Unsupported(f"the checkpoint does not fit its config: {'; '.join(problems)}", param="model")


def _listed(what: str, names: Iterable[str]) -> Iterator[str]:
    found = sorted(names)
    if found:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        yield f"{what}: {', '.join(found[:SHOWN])}{more}"


def _fill(wanted: Mapping[str, Wanted], checkpoint: Checkpoint) -> None:
    """Read in the network's order, so that each layer is packed, and its raw tensors freed, as soon as it is whole."""
    for want, tensor in zip(wanted.values(), _ahead(checkpoint, wanted), strict=True):
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
