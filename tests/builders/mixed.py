"""A quantised base under two adapters in one batch, beside PEFT on the same base in plain float32."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from aril.engine.llm import LLM, RequestOutput
from aril.engine.params import SamplingParams
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from builders.adapters import make_adapter
from builders.models import make_tokenizer

ADAPTERS: dict[str, dict[str, Any]] = {
    "low": {"r": 3, "targets": ("q_proj", "v_proj", "down_proj")},
    "high": {"r": 16, "targets": "all-linear", "use_rslora": True},
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=5)


def plain_model(folder: Path, weights: Mapping[str, Tensor]) -> Any:
    """The model of a quantised checkpoint as transformers would have it without: float32, `weights` by module path.

    What `weights` does not name is taken from the checkpoint's safetensors, where it must be plain.
    """
    config = AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    files = [file for file in folder.glob("*.safetensors") if "reference" not in file.name and "dense" not in file.name]
    stored = {name: tensor for file in files for name, tensor in load_file(file).items()}
    state = {name: tensor.float() for name, tensor in stored.items() if name in model.state_dict()}
    state |= {f"{name}.weight": weight for name, weight in weights.items()}
    found = model.load_state_dict(state, strict=False)
    assert not found.unexpected_keys
    assert set(found.missing_keys) <= ({"lm_head.weight"} if config.tie_word_embeddings else set())
    return model


def assert_mixed_batch_follows(
    model: Any, folder: Path, tmp_path: Path, *, tolerance: float = 2e-3, **flags: Any
) -> None:
    """The engine on `folder` answers the base and two adapters, interleaved in one batch, as PEFT on `model` does.

    `model` is a transformers model (see `plain_model`), with a forward pre-hook on each Linear whose inputs the format
    rounds: adapters see inputs as they are. `tolerance` is of log-probabilities; `flags` go to the engine.
    """
    adapters = {
        name: make_adapter(tmp_path / name, model, seed=seed, **config)
        for seed, (name, config) in enumerate(ADAPTERS.items())
    }
    prompts = [_prompt(model.config.vocab_size, seed) for seed in range(3)]
    outputs = _answers(_with_tokenizer(folder, tmp_path), adapters, prompts, flags)
    peft = PeftModel.from_pretrained(model, str(adapters["low"]), adapter_name="low").eval()
    peft.load_adapter(str(adapters["high"]), adapter_name="high")
    try:
        for output in outputs:
            _follows(peft, output, tolerance)
    finally:
        peft.unload()


def _answers(
    folder: Path, adapters: Mapping[str, Path], prompts: list[list[int]], flags: Mapping[str, Any]
) -> list[RequestOutput]:
    who = [None, *adapters]
    small = {"dtype": "float32", "kv_cache_memory": "16MiB", "adapter_memory": "8MiB", "threads": 1}
    llm = LLM(str(folder), adapters=dict(adapters), **{**small, **flags})
    try:
        interleaved = [prompt for prompt in prompts for _ in who]
        return llm.generate(interleaved, GREEDY, adapter=who * len(prompts), use_tqdm=False)
    finally:
        llm.close()


def _follows(peft: Any, output: RequestOutput, tolerance: float) -> None:
    """Every token is PEFT's best, at PEFT's log-probabilities, and the adapter matters."""
    answer = output.outputs[0]
    tokens = output.prompt_token_ids + answer.token_ids
    bare = _logprobs(peft, None, tokens)[len(output.prompt_token_ids) - 1 : -1]
    expected = _logprobs(peft, output.adapter, tokens)[len(output.prompt_token_ids) - 1 : -1]  # [answer, vocab]
    chosen = expected.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
    assert (chosen >= expected.amax(1) - tolerance).all()
    assert answer.logprobs is not None
    for found, row in zip(answer.logprobs, expected, strict=True):
        assert (torch.tensor(list(found.top.values())) - row[list(found.top)]).abs().max() < tolerance
    assert output.adapter is None or (bare - expected).abs().max() > 0.2


@torch.no_grad()
def _logprobs(peft: Any, adapter: str | None, tokens: list[int]) -> Tensor:
    ids = torch.tensor([tokens])
    if adapter is None:
        with peft.disable_adapter():
            logits = peft(input_ids=ids).logits[0]
    else:
        peft.set_adapter(adapter)
        logits = peft(input_ids=ids).logits[0]
    return torch.log_softmax(logits, dim=-1)


def _with_tokenizer(folder: Path, tmp_path: Path) -> Path:
    """`folder`, or a copy with some tokenizer where it has none: prompts are ids, but an engine wants one."""
    if (folder / "tokenizer.json").exists():
        return folder
    copy = shutil.copytree(folder, tmp_path / "with-tokenizer")
    make_tokenizer(vocab_size=512).save_pretrained(copy)
    return copy


def _prompt(vocab_size: int, seed: int) -> list[int]:
    return torch.randint(3, vocab_size, (5 + 11 * seed,), generator=torch.Generator().manual_seed(seed)).tolist()
