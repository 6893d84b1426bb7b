"""The offline API: answers in order, adapters mixed in one batch and equal to PEFT's."""

import re
from pathlib import Path

import pytest
import torch
from aril import LLM, SamplingParams
from aril.core.errors import InvalidAdapter, InvalidRequest, NotFound
from builders.adapters import load_base, make_adapter, with_adapter
from builders.engines import greedy
from builders.models import make_model

KINDS = {
    "small": {"r": 2, "targets": ("q_proj", "v_proj")},
    "wide": {"r": 16, "targets": "all-linear", "seed": 1},
    "mlp": {"r": 5, "targets": ("gate_proj", "down_proj"), "seed": 2},
}
TEXTS = ["A pomegranate", "Pack my box with five dozen liquor jugs. " * 5, "x", "The dog sleeps", "SELECT name FROM"]
SMALL = {"dtype": "float32", "device": "cpu", "threads": 1, "kv_cache_memory": "4MiB", "adapter_memory": "4MiB"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapters(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("adapters")
    return {name: make_adapter(home / name, folder, **kind) for name, kind in KINDS.items()}


@pytest.fixture(scope="module")
def llm(folder: Path, adapters: dict[str, Path]) -> LLM:
    return LLM(str(folder), adapters=adapters, **SMALL)


def test_base_and_adapters_in_one_batch_answer_as_transformers_and_peft_do(llm, folder, adapters):
    names = [None, "small", "wide", "mlp"]
    each = [(text, name) for text in TEXTS for name in names]
    outputs = llm.generate([t for t, _ in each], greedy(16), adapter=[n for _, n in each], use_tqdm=False)
    models = {None: load_base(folder), **{name: with_adapter(folder, home) for name, home in adapters.items()}}
    for output, (text, name) in zip(outputs, each, strict=True):
        ids = torch.tensor([output.prompt_token_ids])
        wanted = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        expected = models[name].generate(input_ids=ids, **wanted)[0, ids.shape[1] :].tolist()
        assert (output.prompt, output.adapter, output.outputs[0].token_ids) == (text, name, expected)


def test_outputs_have_the_shape_that_users_of_vllm_know(llm):
    (output,) = llm.generate(
        "x", SamplingParams(n=2, max_tokens=4, seed=1, logprobs=1, ignore_eos=True), use_tqdm=False
    )
    assert [one.index for one in output.outputs] == [0, 1]
    for one in output.outputs:
        assert (len(one.token_ids), len(one.logprobs), one.finish_reason) == (4, 4, "length")
        assert one.cumulative_logprob == pytest.approx(sum(each.logprob for each in one.logprobs))
    assert 0 < output.metrics.time_to_first_token <= output.metrics.latency


def test_text_and_its_token_ids_are_the_same_prompt(llm):
    text = TEXTS[0]
    (by_text,) = llm.generate(text, greedy(), use_tqdm=False)
    by_ids = llm.generate([by_text.prompt_token_ids, by_text.prompt_token_ids], greedy(), use_tqdm=False)
    assert [one.outputs[0].text for one in by_ids] == [by_text.outputs[0].text] * 2


def test_chat_applies_the_template(llm):
    messages = [{"role": "user", "content": "hello"}]
    (answer,) = llm.chat(messages, greedy(), use_tqdm=False)
    assert answer.prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    both = llm.chat([messages, messages], greedy(), adapter=[None, "wide"], use_tqdm=False)
    assert both[0].outputs[0].text == answer.outputs[0].text != both[1].outputs[0].text


@pytest.mark.parametrize("given", ["hello", ["hello"], {"role": "user"}, [[{"role": "user"}], "hello"], None])
def test_what_is_no_conversation_is_told_what_chat_takes(llm, given):
    with pytest.raises(InvalidRequest, match=r'chat takes \[{"role": "user", .*; generate takes text'):
        llm.chat(given, greedy(), use_tqdm=False)


def test_each_prompt_may_have_its_own_params(llm):
    outputs = llm.generate(TEXTS[:2], [greedy(3), greedy(7)], use_tqdm=False)
    assert [len(one.outputs[0].token_ids) for one in outputs] == [3, 7]


def test_an_unknown_adapter_is_answered_with_those_there_are(llm):
    with pytest.raises(NotFound, match="'pirate'; there are small, wide, mlp"):
        llm.generate("x", adapter="pirate", use_tqdm=False)


def test_a_refused_prompt_leaves_nothing_behind(llm):
    with pytest.raises(InvalidRequest, match="empty"):
        llm.generate([[5, 6], []], greedy(), use_tqdm=False)
    assert len(llm.generate([[5, 6]], greedy(), use_tqdm=False)) == 1


def test_an_adapter_of_another_base_is_refused_at_the_start(folder, tmp_path):
    other = make_model(tmp_path / "other", hidden_size=96)
    with pytest.raises(InvalidAdapter, match=f"'stranger', {tmp_path}/adapter: "):
        LLM(str(folder), adapters={"stranger": make_adapter(tmp_path / "adapter", other)}, **SMALL)


@pytest.mark.parametrize(
    ("place", "said"), [("nowhere", "there is no such folder"), ("empty", "adapter_config.json is missing")]
)
def test_an_adapter_that_is_not_there_is_told_with_its_name_and_folder(folder, tmp_path, place, said):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidAdapter, match=f"^adapter 'pirate', {tmp_path}/{place}: {said}$"):
        LLM(str(folder), adapters={"pirate": str(tmp_path / place)}, **SMALL)


def test_an_answer_is_held_to_a_constraint(llm):
    params = [SamplingParams(seed=at, structured_outputs={"regex": "[0-9]{2}(x|y)"}) for at in range(4)]
    found = llm.generate(TEXTS[:4], params, adapter=[None, "small", "wide", "mlp"])
    assert all(re.fullmatch("[0-9]{2}(x|y)", output.outputs[0].text) for output in found)


def test_a_wrong_constraint_is_refused_before_anything_runs(llm):
    with pytest.raises(InvalidRequest, match="structured_outputs"):
        llm.generate("x", SamplingParams(structured_outputs={"regex": "("}))
    assert llm.generate("x", greedy(2))[0].outputs[0].finish_reason == "length"
