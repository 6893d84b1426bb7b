"""PEFT adapters made on the spot: real `save_pretrained` folders whose random weights change the answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM


def make_adapter(
    folder: Path,
    base: Path | Any,
    *,
    r: int = 8,
    targets: Sequence[str] | str = ("q_proj", "v_proj"),
    seed: int = 0,
    scale: float = 0.5,
    dtype: torch.dtype = torch.float32,
    **lora_config: Any,
) -> Path:
    """Save a LoRA adapter for `base` (a model folder, or a loaded transformers model, which stays as it was).

    `scale` is about the size of what each adapted Linear adds to its output for a normalised input, whatever the rank
    and alpha are. `targets` is a list of names, a regular expression or "all-linear"; `lora_config` goes to PEFT.
    """
    model = load_base(base) if isinstance(base, Path) else base
    chosen = targets if isinstance(targets, str) else list(targets)
    config = LoraConfig(r=r, target_modules=chosen, task_type="CAUSAL_LM", **{"lora_alpha": 2 * r, **lora_config})
    adapted = get_peft_model(model, config)
    try:
        _randomise(adapted, seed, scale, dtype)
        adapted.save_pretrained(str(folder))
    finally:
        adapted.unload()
    return folder


def load_base(folder: Path) -> Any:
    """The model of a folder in float32, for `make_adapter` and as the oracle."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def with_adapter(base: Path, adapter: Path) -> PeftModel:
    """What transformers and PEFT make of an adapter: the oracle."""
    return PeftModel.from_pretrained(load_base(base), str(adapter)).eval()


@torch.no_grad()
def _randomise(adapted: Any, seed: int, scale: float, dtype: torch.dtype) -> None:
    noise = torch.Generator().manual_seed(seed)
    for module in adapted.modules():
        if "default" not in getattr(module, "lora_A", {}):
            continue
        a = module.lora_A["default"].to(dtype).weight  # [rank, in]
        b = module.lora_B["default"].to(dtype).weight  # [out, rank]
        rank, width = a.shape
        a.copy_(torch.randn(a.shape, generator=noise) / width**0.5)
        b.copy_(torch.randn(b.shape, generator=noise) * scale / (rank**0.5 * module.scaling["default"]))
