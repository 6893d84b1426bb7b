"""What transformers and PEFT make of the same model and adapters: the oracle of the exactness part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy continuation, and by how much each of its tokens was the most likely one."""

    tokens: list[int]
    leads: list[float]  # logit of the token over the next best


class Reference:
    """One model with all adapters, each used alone."""

    def __init__(
        self, base: Path, adapters: Mapping[str, Path], *, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self._device = device
        first, *others = adapters
        model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype).to(device)
        self._model = PeftModel.from_pretrained(model, str(adapters[first]), adapter_name=first).eval()
        for name in others:
            self._model.load_adapter(str(adapters[name]), adapter_name=name)
        self._model.eval()

    @torch.inference_mode()
    def logits(self, adapter: str | None, tokens: Sequence[int]) -> Tensor:
        """[len(tokens), vocab] float32, without any cache."""
        if adapter is not None:
            self._model.set_adapter(adapter)
        with self._model.disable_adapter() if adapter is None else nullcontext():
            logits: Tensor = self._model(input_ids=torch.tensor([tokens], device=self._device)).logits
        return logits[0].float()

    def greedy(self, adapter: str | None, prompt: Sequence[int], num_tokens: int) -> Answer:
        """The most likely continuation."""
        tokens, leads = list(prompt), []
        for _ in range(num_tokens):
            best = self.logits(adapter, tokens)[-1].topk(2)
            tokens.append(int(best.indices[0]))
            leads.append(float(best.values[0] - best.values[1]))
        return Answer(tokens[len(prompt) :], leads)
