"""A tiny base, four adapters of mixed ranks and targets, and transformers with PEFT to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from aril.engine.llm import LLM, RequestOutput
from aril.engine.params import SamplingParams
from builders.adapters import load_base, make_adapter, with_adapter
from builders.models import make_model
from torch import Tensor

ADAPTERS: dict[str, dict[str, Any]] = {
    "qv": {"r": 8},
    "all": {"r": 3, "targets": "all-linear", "use_rslora": True},
    "mlp": {"r": 32, "targets": ("gate_proj", "down_proj"), "rank_pattern": {"down_proj": 5}},
    "late": {"r": 16, "targets": ("k_proj", "o_proj"), "layers_to_transform": [2]},
}
EVERYONE = (None, *ADAPTERS)
NUM_PROMPTS = 8
NUM_TOKENS = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=20)
SHORT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=20)
MakeLLM = Callable[..., LLM]


@dataclass(frozen=True)
class Oracle:
    """transformers, with PEFT where there is an adapter."""

    base: Path
    adapters: dict[str, Path]
    models: dict[str | None, Any]

    def logits(self, adapter: str | None, tokens: Sequence[int]) -> Tensor:
        """Logits [T, vocab] of all positions."""
        if adapter not in self.models:
            folder = None if adapter is None else self.adapters[adapter]
            self.models[adapter] = load_base(self.base) if folder is None else with_adapter(self.base, folder)
        with torch.no_grad():
            return self.models[adapter](input_ids=torch.tensor([tokens])).logits[0]

    def continues(self, adapter: str | None, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The most likely tokens, one after the other."""
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self.logits(adapter, tokens)[-1].argmax()))
        return tokens[len(prompt) :]

    def follows(self, output: RequestOutput) -> None:
        """Assert that it would have chosen every token of `output`, at the same log-probabilities."""
        answer = output.outputs[0]
        logits = self.logits(output.adapter, output.prompt_token_ids + answer.token_ids)
        logits = logits[len(output.prompt_token_ids) - 1 : -1]  # [answer, vocab]
        assert answer.token_ids == logits.argmax(dim=-1).tolist()
        assert answer.logprobs is not None
        for found, expected in zip(answer.logprobs, logits.log_softmax(dim=-1), strict=True):
            near = torch.tensor(list(found.top.values()))
            assert (near - expected[list(found.top)]).abs().max() < 1e-3


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """The base `tiny` with its four adapters."""
    root = tmp_path_factory.mktemp("exactness")
    base = make_model(root / "base", max_position_embeddings=1024)
    loaded = load_base(base)
    folders = {
        name: make_adapter(root / name, loaded, seed=seed, **config)
        for seed, (name, config) in enumerate(ADAPTERS.items())
    }
    return Oracle(base, folders, {None: loaded})


@pytest.fixture
def make_llm(oracle: Oracle) -> Iterator[MakeLLM]:
    """Engines on the oracle's base and adapters; closed at the end."""
    made: list[LLM] = []

    def make(**flags: Any) -> LLM:
        small = {"dtype": "float32", "kv_cache_memory": "16MiB", "adapter_memory": "4MiB", "threads": 1}
        made.append(LLM(str(oracle.base), adapters=oracle.adapters, **{**small, **flags}))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


def prompt(seed: int, length: int) -> list[int]:
    """Random tokens, none of them special."""
    return torch.randint(3, 512, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def crossed(prompts: Sequence[list[int]]) -> tuple[list[list[int]], list[str | None]]:
    """Every prompt for the base and for every adapter, interleaved."""
    return [p for p in prompts for _ in EVERYONE], list(EVERYONE) * len(prompts)


PROMPTS = [
    prompt(seed, length) for seed, length in zip(range(NUM_PROMPTS), (3, 17, 64, 41, 5, 33, 100, 16), strict=True)
]
