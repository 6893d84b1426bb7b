"""gptq and awq with GPTQModel, which goes on behind the last layer that it kept, for the networks that it can."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# It would start 16 threads; under 2 it refuses its own loader.
os.environ.setdefault("GPTQMODEL_CPU_WORKERS", str(max(2, os.cpu_count() or 1)))

from gptqmodel import CheckpointConfig, GPTQModel, QuantizeConfig

RESUMABLE = ("llama",)  # of gptqmodel 7.7, looper/gptq_checkpoint.py; it refuses to keep layers of others


def quantize(job: dict[str, Any], tell: Callable[..., None]) -> None:
    """Write `job["out"]`; told are the number of layers and each one that is done."""
    model = GPTQModel.load(job["model"], _config(job["scheme"]))
    tell("start", layers=model.model.config.num_hidden_layers)
    model.layer_callback = _Layers(tell)
    kind = model.model.config.model_type
    if kind not in RESUMABLE:
        tell("note", text=f"GPTQModel cannot go on in the middle of a {kind} network: an interrupted call starts anew.")
    kept = CheckpointConfig(path=job["kept"]) if kind in RESUMABLE else None
    model.quantize([_sample(ids) for ids in job["samples"]], batch_size=1, checkpoint=kept)
    model.save(job["out"])


class _Layers:
    """Hears of each layer, perhaps twice and out of order."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._heard: set[int] = set()

    def layer_complete(self, *, layer_idx: int, **_: Any) -> None:
        if layer_idx not in self._heard:
            self._heard.add(layer_idx)
            self._tell("layer", name=f"layer {layer_idx}")


def _config(scheme: dict[str, Any]) -> QuantizeConfig:
    fields = {name: scheme[name] for name in ("bits", "group_size", "sym", "desc_act")}
    if scheme["method"] == "awq":
        return QuantizeConfig(**fields, method="awq", format="gemm")
    # Its own order inside groups (act_group_aware) needs groups, and excludes act order.
    return QuantizeConfig(**fields, act_group_aware=scheme["group_size"] != -1 and not scheme["desc_act"])


def _sample(ids: list[int]) -> dict[str, list[int]]:
    return {"input_ids": ids, "attention_mask": [1] * len(ids)}
