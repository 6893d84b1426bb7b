"""PEFT folders of random numbers on every linear of a base: adapters for load, of which only the size matters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from ..lora.config import CONFIG_FILE, WEIGHTS_FILE
from ..lora.fingerprint import Fingerprint
from ..lora.validate import TargetSpec
from ..models.loader import plan_model
from ..models.source import locate

SPREAD = 0.02  # standard deviation; small beside the base's own output


def targets_of(model: str) -> TargetSpec:
    """Where adapters of `model` may stand."""
    network = plan_model(locate(model), device=torch.device("meta")).decoder
    return TargetSpec.of(Fingerprint(model), network.linears, network.spec.dtype)


def make(folder: Path, modules: Mapping[str, tuple[int, int]], *, rank: int, seed: int, spread: float = SPREAD) -> Path:
    """One adapter of `rank` on all `modules` (path -> in and out features), in bfloat16."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).mul_(spread).to(torch.bfloat16)

    tensors = {}
    for path, (width_in, width_out) in modules.items():
        tensors[f"base_model.model.{path}.lora_A.weight"] = numbers(rank, width_in)
        tensors[f"base_model.model.{path}.lora_B.weight"] = numbers(width_out, rank)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    kinds = sorted({path.rsplit(".", 1)[-1] for path in modules})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "target_modules": kinds}
    (folder / CONFIG_FILE).write_text(json.dumps(config))
    return folder
