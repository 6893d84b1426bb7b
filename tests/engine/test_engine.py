"""The engine as a whole, against transformers on the same weights."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from aril.core.errors import ArilError, Conflict, DoesNotFit, EngineDead, InvalidRequest
from aril.engine.engine import Engine
from aril.engine.params import SamplingParams
from aril.engine.request import Request
from aril.lora.adapter import AdapterRef
from builders.adapters import load_base
from builders.engines import ask, drain, greedy, make_engine, run
from builders.models import make_model
from safetensors.torch import load_file, save_file

TEXTS = [
    "x",
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 8,
    "A pomegranate holds many seeds; each aril is a world of its own.",
    "SELECT name",
    "user asks: what is the capital of France? " * 3,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return make_engine(folder)


@pytest.fixture(scope="module")
def prompts(engine: Engine) -> list[list[int]]:
    return [engine.text.encode(text) for text in TEXTS]


@pytest.fixture(scope="module")
def expected(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    model = load_base(folder)
    wanted = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return [model.generate(torch.tensor([p]), **wanted)[0, len(p) :].tolist() for p in prompts]


def tokens_of(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    return [told.token_ids for told in run(engine, ask(prompts, greedy(24)))]


def test_greedy_tokens_of_a_mixed_batch_are_those_of_transformers(engine, prompts, expected):
    assert tokens_of(engine, prompts) == expected


@pytest.mark.parametrize(
    "flags",
    [
        {"max_num_batched_tokens": 16},
        {"max_num_seqs": 1},
        {"kv_cache_memory": 18 * 16 * 768, "max_model_len": 224},  # 18 blocks for rows that want 30 in the end
        {"block_size": 1, "enable_prefix_caching": False},
    ],
    ids=["chunked", "alone", "preempted", "blocks of one token"],
)
def test_tokens_do_not_depend_on_how_a_batch_is_cut(folder, prompts, expected, flags):
    assert tokens_of(make_engine(folder, **flags), prompts) == expected


def test_a_warm_prefix_cache_changes_no_token(engine, prompts, expected):
    tokens_of(engine, prompts)
    warm = run(engine, ask(prompts, greedy(24)))
    assert [told.token_ids for told in warm] == expected
    assert warm[1].num_cached > 100


def test_a_seeded_request_draws_the_same_tokens_whatever_shares_its_batch(engine, prompts):
    params = SamplingParams(seed=11, top_p=0.95, temperature=1.2, presence_penalty=0.4, max_tokens=20, ignore_eos=True)
    others = [greedy(9), SamplingParams(seed=3, max_tokens=30), greedy(20), greedy(5, logprobs=2), params]
    together = run(engine, ask(prompts, others))[-1]
    alone = run(engine, ask(prompts[-1:], params))[0]
    assert together == dataclasses.replace(alone, num_cached=together.num_cached)


def test_choices_of_one_request_share_its_prompt_and_differ(engine, prompts):
    free = engine.status().free_blocks
    engine.add(Request("many", prompts[1], SamplingParams(n=4, seed=5, max_tokens=12, ignore_eos=True)))
    told = drain(engine)
    assert [index for _, index in told] == [0, 1, 2, 3]
    assert len({tuple(one.token_ids) for one in told.values()}) == 4
    assert engine.status().free_blocks == free


def test_greedy_choices_are_all_alike(engine, prompts, expected):
    engine.add(Request("many", prompts[2], greedy(24, n=3)))
    assert [one.token_ids for one in drain(engine).values()] == [expected[2]] * 3


def are_alike(text: str, decoded: str) -> bool:
    """Whether nothing is missing but a last character that its tokens began and did not finish."""
    return decoded in (text, text + "\ufffd")


def test_text_is_the_decoded_tokens(engine, prompts):
    told = run(engine, ask(prompts, greedy(40)))
    assert all(are_alike(one.text, engine.text.decode(one.token_ids)) for one in told)


def test_a_stop_string_ends_the_text_before_it(engine, prompts):
    whole = run(engine, ask(prompts[1:2], greedy(30)))[0].text
    stop = whole[9:14]
    told = run(engine, ask(prompts[1:2], greedy(30, stop=(stop,))))[0]
    assert (told.text, told.finish_reason, told.stop_reason) == (whole[: whole.index(stop)], "stop", stop)
    assert engine.status().running == 0


def test_a_stop_token_ends_the_text_and_is_not_part_of_it(engine, prompts, expected):
    stop = expected[3][6]
    first = expected[3].index(stop)
    told = run(engine, ask(prompts[3:4], greedy(24, stop_token_ids=(stop,))))[0]
    assert (told.token_ids, told.stop_reason) == (expected[3][: first + 1], stop)
    assert are_alike(told.text, engine.text.decode(expected[3][:first]))


def test_logprobs_are_those_of_the_networks_own_distribution(engine, folder, prompts):
    params = SamplingParams(
        seed=2, temperature=0.6, top_k=20, max_tokens=8, ignore_eos=True, logprobs=3, prompt_logprobs=2
    )
    told = run(engine, ask([prompts[4]], params))[0]
    ids = torch.tensor([prompts[4] + told.token_ids])
    with torch.no_grad():
        raw = load_base(folder)(ids).logits[0].log_softmax(-1)
    by_position = [one for one in told.prompt_logprobs if one] + told.logprobs
    assert told.prompt_logprobs[0] is None
    assert len(by_position) == ids.shape[1] - 1
    for at, one in enumerate(by_position):
        assert one.token_id == ids[0, at + 1]
        assert one.logprob == pytest.approx(float(raw[at, one.token_id]), abs=1e-4)
        assert one.rank == 1 + int((raw[at] > raw[at, one.token_id]).sum())
        assert list(one.top) == raw[at].topk(len(one.top)).indices.tolist()


def test_an_aborted_request_frees_its_blocks(engine, prompts):
    free = engine.status().free_blocks
    engine.add(Request("gone", prompts[1], greedy(300)))
    engine.step()
    held = engine.status().free_blocks
    engine.abort("gone")
    assert (held < free, engine.status().free_blocks) == (True, free)
    assert drain(engine)["gone", 0].finish_reason == "abort"


@pytest.mark.parametrize(
    ("prompt", "fields", "message"),
    [
        ([], {}, "empty"),
        ([1, 512], {}, "512 is outside the vocabulary"),
        ([1], {"logit_bias": {-1: 1.0}}, "-1 is outside"),
        ([1], {"stop_token_ids": (9999,)}, "9999 is outside"),
        ([1] * 600, {}, "600 tokens"),
    ],
)
def test_what_can_never_run_is_refused_with_the_numbers(engine, prompt, fields, message):
    with pytest.raises(InvalidRequest, match=message):
        engine.add(Request("bad", prompt, SamplingParams(**fields)))
    assert not engine.has_work


def test_an_adapter_that_is_not_loaded_is_refused_by_name(engine):
    with pytest.raises(InvalidRequest, match="'pirate' is not loaded"):
        engine.add(Request("bad", [1], SamplingParams(), AdapterRef("pirate", 1, "0" * 64)))


def test_an_id_in_use_is_refused_and_the_first_request_goes_on(engine, prompts, expected):
    engine.add(Request("twice", prompts[2], greedy(24)))
    with pytest.raises(Conflict):
        engine.add(Request("twice", prompts[3], greedy(24)))
    assert drain(engine)["twice", 0].token_ids == expected[2]


def test_requests_without_a_seed_follow_the_engines_own(folder):
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    drawn = [run(make_engine(folder, seed=seed), ask([[5, 6]] * 2, params)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] != drawn[0][1]


def test_defaults_come_from_the_generation_config_unless_told_otherwise(folder, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.3, "top_k": 9, "max_new_tokens": 7}))
    named = make_engine(folder, generation_config=str(tmp_path)).default_params
    assert named == {"temperature": 0.3, "top_k": 9, "max_tokens": 7}
    assert make_engine(folder, generation_config="vllm").default_params == {}
    with pytest.raises(InvalidRequest, match="generation_config"):
        make_engine(folder, generation_config=str(tmp_path / "nowhere"))


def test_one_row_with_broken_numbers_fails_alone(folder, tmp_path, prompts, expected):
    broken = make_model(tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    bad = next(token for token in range(500) if all(token not in p + e for p, e in zip(prompts, expected, strict=True)))
    weights["model.embed_tokens.weight"][bad] = float("nan")
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    told = run(make_engine(broken), ask([*prompts, [5, bad, 6]], greedy(24)))
    assert [one.token_ids for one in told[:-1]] == expected
    assert (told[-1].finish_reason, type(told[-1].error)) == ("error", ArilError)


def test_a_step_that_fails_ends_every_request_and_the_engine(folder, prompts):
    engine = make_engine(folder)
    for request in ask(prompts, greedy(24)):
        engine.add(request)
    engine.step()
    engine._runner._caches.clear()  # the memory itself is gone
    told = drain(engine)
    assert {(one.finish_reason, type(one.error)) for one in told.values()} == {("error", EngineDead)}
    assert not engine.status().alive
    with pytest.raises(EngineDead):
        engine.add(Request("late", [1], greedy()))


def test_an_id_is_free_again_when_its_end_has_been_told(engine):
    engine.add(Request("again", [5, 6], greedy(24)))
    engine.step()
    engine.abort("again")
    with pytest.raises(Conflict):
        engine.add(Request("again", [5, 6], greedy(2)))
    assert drain(engine)["again", 0].finish_reason == "abort"
    engine.add(Request("again", [5, 6], greedy(2)))
    assert drain(engine)["again", 0].finish_reason == "length"


def test_what_does_not_fit_is_refused_with_bytes_and_flag(folder):
    with pytest.raises(
        DoesNotFit, match=r"512 tokens takes 384 KiB .* raise --kv-cache-memory, .*--max-model-len to 32"
    ):
        make_engine(folder, max_model_len=512, kv_cache_memory="30KiB")


def test_without_a_stated_length_the_context_is_what_fits_and_the_log_says_so(folder, caplog):
    model = make_engine(folder, kv_cache_memory="30KiB").model
    assert (model.max_model_len, model.context) == (32, 512)
    (warning,) = (record for record in caplog.records if "kv_cache_cuts_context" in record.message)
    assert warning.levelname == "WARNING"
    assert "longest_request=32 of=512 advice='raise --kv-cache-memory" in warning.message


def test_a_context_that_was_asked_for_is_no_surprise(folder, caplog):
    assert make_engine(folder, kv_cache_memory="30KiB", max_model_len=32).model.context == 32
    assert "kv_cache_cuts_context" not in caplog.text
