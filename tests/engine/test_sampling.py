"""What sampling means: exact where it can be, the right distribution where it draws, no row touching another."""

import dataclasses

import numpy as np
import pytest
import torch
from aril.core.errors import ArilError, InvalidRequest
from aril.engine.draw import Noise, draw
from aril.engine.logits import History
from aril.engine.params import SamplingParams
from aril.engine.sampler import Sampler, Wanted
from aril.engine.step import NewRow, Sampled
from hypothesis import given
from hypothesis import strategies as st

VOCAB = 400
EOS = 3


def logits(rows: int, *, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def sample(values: torch.Tensor, params: list[SamplingParams], tokens: list[list[int]] | None = None) -> list[Sampled]:
    """One step of a fresh sampler; `tokens`: prompt of 2 tokens and the output so far, for each row."""
    sampler = Sampler([EOS])
    for at, one in enumerate(params):
        ids = tokens[at] if tokens else [5, 6]
        sampler.admit(NewRow(str(at), ids, min(2, len(ids)), one, 0, 0, ()))
    answers = sampler.sample(values.clone(), [Wanted(str(at), at) for at in range(len(params))])
    return [answers[str(at)] for at in range(len(params))]


def greedy(**fields: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=None, **fields)  # type: ignore[arg-type]


def test_greedy_is_the_most_likely_token():
    values = logits(5)
    assert [s.token_ids[0] for s in sample(values, [greedy()] * 5)] == values.argmax(-1).tolist()


MIXED = [
    greedy(),
    SamplingParams(seed=1),
    SamplingParams(seed=2, top_p=0.8, temperature=1.7),
    SamplingParams(seed=3, top_k=7, logprobs=3),
    SamplingParams(seed=4, min_p=0.02),
    SamplingParams(seed=5, top_k=40, top_p=0.5, min_p=0.01, repetition_penalty=1.3),
    greedy(presence_penalty=1.0, frequency_penalty=0.5, logit_bias={9: 4.0}),
    greedy(min_tokens=9, stop_token_ids=(8,)),
]


def test_a_row_draws_the_same_token_whatever_shares_its_batch():
    values = logits(len(MIXED), seed=3)
    together = sample(values, MIXED)
    alone = [sample(values[at : at + 1], [params])[0] for at, params in enumerate(MIXED)]
    assert together == alone


@pytest.mark.parametrize(
    "fields", [{}, {"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.1}, {"temperature": 0.5, "top_p": 0.9}]
)
def test_draws_follow_the_truncated_distribution(fields):
    values = logits(1, vocab=12)
    params = SamplingParams(**fields)
    count = 4000
    uniforms = [(at + 0.5) / count for at in range(count)]
    tokens = draw(values, [0] * count, [params] * count, uniforms)
    expected = truncated(values[0].double(), params)
    assert torch.allclose(torch.bincount(tokens, minlength=12) / count, expected.float(), atol=2 / count * 12)


def truncated(values: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The plain meaning: temperature, then min_p, top_k and top_p, each on what the one before left."""
    probs = torch.softmax(values / params.temperature, -1)
    probs[probs < params.min_p * probs.max()] = 0
    if params.top_k > 0:
        probs[probs < probs.sort(descending=True).values[params.top_k - 1]] = 0
    probs /= probs.sum()
    ordered, ids = probs.sort(descending=True)
    probs[ids[ordered.cumsum(-1) - ordered >= params.top_p]] = 0
    return probs / probs.sum()


@pytest.mark.parametrize("fields", [{"top_p": 0.95}, {"top_p": 0.99, "min_p": 1e-4}, {"min_p": 1e-3, "top_p": 0.9}])
def test_a_wide_nucleus_is_sorted_whole(fields):
    values = logits(3, vocab=3000) / 10  # so flat that the 256 most likely tokens are not enough
    params = SamplingParams(**fields)
    uniforms = [0.0, 0.5, 1 - 2**-53]
    tokens = draw(values, range(3), [params] * 3, uniforms)
    for at, uniform in enumerate(uniforms):
        expected = truncated(values[at].double(), params)
        order = expected.sort(descending=True)
        place = int((order.values.cumsum(-1) <= uniform + 1e-9).sum())
        nearby = order.indices[max(0, min(place, int((expected > 0).sum()) - 1) - 3) :][:6]
        assert tokens[at] in nearby


def test_noise_is_a_function_of_seed_choice_and_position():
    forward = [Noise(7, 1).at(at) for at in range(200)]
    noise = Noise(7, 1)
    assert [noise.at(at) for at in reversed(range(200))] == forward[::-1]
    assert (
        len({*forward, *(Noise(7, 2).at(at) for at in range(200)), *(Noise(8, 1).at(at) for at in range(200))}) == 600
    )


@given(st.lists(st.integers(0, 9), max_size=8), st.lists(st.integers(0, 9), max_size=200))
def test_a_history_counts_the_output_and_knows_the_prompt(prompt, output):
    history = History(prompt, output)
    counts = dict(zip(history.ids.tolist(), history.counts.tolist(), strict=True))
    assert counts == {token: output.count(token) for token in {*prompt, *output}}


def test_penalties_mean_what_they_mean_in_vllm():
    values = logits(1, seed=5)
    prompt, output = [11, 12], [12, 13, 13]
    params = greedy(repetition_penalty=1.5, presence_penalty=0.7, frequency_penalty=0.3, logprobs=0)
    expected = values[0].clone()
    for token in (11, 12, 13):
        expected[token] = expected[token] / 1.5 if expected[token] > 0 else expected[token] * 1.5
    for token in (12, 13):
        expected[token] -= 0.7 + 0.3 * output.count(token)
    others = [t for t in range(VOCAB) if t not in (11, 12, 13)]
    values[0, others], expected[others] = -50.0, -50.0
    assert sample(values, [params], [prompt + output])[0].token_ids == [int(expected.argmax())]


def test_a_bias_can_force_and_forbid_a_token():
    values = logits(2)
    best = int(values[1].argmax())
    forced, forbidden = sample(values, [greedy(logit_bias={17: 100.0}), greedy(logit_bias={best: -100.0})])
    assert forced.token_ids == [17]
    assert forbidden.token_ids == [int(values[1].topk(2).indices[1])]


def test_no_ender_is_drawn_before_min_tokens():
    values = logits(1)
    values[0, EOS], values[0, 8] = 99.0, 98.0
    params = greedy(min_tokens=2, stop_token_ids=(8,))
    before = sample(values, [params], [[5, 6, 7]])[0].token_ids
    after = sample(values, [params], [[5, 6, 7, 7]])[0].token_ids
    assert (before[0] in (EOS, 8), after) == (False, [EOS])


def test_logprobs_are_those_of_the_untouched_distribution():
    values = logits(1)
    params = SamplingParams(temperature=0.3, top_k=2, logit_bias={17: 100.0}, logprobs=4, seed=0)
    (found,) = sample(values, [params])[0].logprobs
    raw = torch.log_softmax(values[0], -1)
    top = raw.topk(4)
    assert found.token_id == 17
    assert (found.logprob, found.rank) == (pytest.approx(float(raw[17])), 1 + int((raw > raw[17]).sum()))
    assert found.top == pytest.approx(dict(zip(top.indices.tolist(), top.values.tolist(), strict=True)))


def test_prompt_logprobs_come_in_the_order_of_the_prompt():
    values = logits(100)
    sampler = Sampler([EOS])
    tokens = np.arange(20, 120)
    params = dataclasses.replace(greedy(), prompt_logprobs=2)
    sampler.admit(NewRow("a", [1, *tokens.tolist()], 101, params, 0, 0, ()))
    found = sampler.sample(values, [Wanted("a", None, 0, tokens, from_start=True)])["a"].prompt_logprobs
    raw = torch.log_softmax(values, -1)
    assert found[0] is None
    assert [f.logprob for f in found[1:]] == pytest.approx([float(raw[at, t]) for at, t in enumerate(tokens)])
    assert all(len(f.top) == 2 for f in found[1:])


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_fails_alone(broken):
    values, params = logits(3), [greedy(), *[SamplingParams(seed=1, top_p=0.9)] * 2]
    sound = sample(values, params)
    values[1, 40] = broken
    first, second, third = sample(values, params)
    assert (first, third) == (sound[0], sound[2])
    assert (second.token_ids, type(second.error)) == ([], ArilError)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_whose_rules_leave_no_token_fails_alone(temperature):
    hopeless = SamplingParams(temperature=temperature, seed=1, min_tokens=2, stop_token_ids=tuple(range(VOCAB)))
    values, other = logits(2), SamplingParams(seed=1)
    failed, drawn = sample(values, [hopeless, other])
    assert (failed.token_ids, type(failed.error)) == ([], InvalidRequest)
    assert drawn == sample(values[1:], [other])[0]
