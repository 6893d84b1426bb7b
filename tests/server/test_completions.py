"""POST /v1/completions: every form of prompt, echo, and logprobs in lists."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from builders.answers import offsets
from openai import OpenAI

GREEDY: Any = {"temperature": 0, "extra_body": {"ignore_eos": True}}


def tokens_of(http: httpx.Client, text: str) -> list[int]:
    return list(http.post("/tokenize", json={"model": "tiny", "prompt": text}).json()["tokens"])


def test_sixteen_tokens_are_the_default(client: OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="the quick", **GREEDY)
    assert answer.usage is not None
    assert (answer.object, answer.usage.completion_tokens) == ("text_completion", 16)


def test_the_default_is_cut_to_what_the_context_holds(client: OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=[5] * 250, **GREEDY)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6


@pytest.mark.parametrize("model", ["tiny", "green"])
def test_text_and_token_ids_are_the_same_prompt(client: OpenAI, http: httpx.Client, model: str) -> None:
    text = "Pack my box with"
    ids = tokens_of(http, text)
    prompts: Any = [text, [text], ids, [ids]]
    answers = {client.completions.create(model=model, prompt=p, **GREEDY).choices[0].text for p in prompts}
    assert len(answers) == 1


def test_many_prompts_with_n_choices_are_numbered_through(client: OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=["one", "two", "three"], n=2, max_tokens=3)
    assert [c.index for c in answer.choices] == list(range(6))
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 18


def test_each_of_many_prompts_answers_as_if_alone(client: OpenAI) -> None:
    prompts = ["the dog", "a pomegranate holds", "user asks"]
    together = client.completions.create(model="red", prompt=prompts, **GREEDY)
    alone = [client.completions.create(model="red", prompt=p, **GREEDY).choices[0].text for p in prompts]
    assert [c.text for c in together.choices] == alone


def test_a_stream_of_many_prompts_says_the_same(client: OpenAI) -> None:
    prompts = ["the dog", "a pomegranate holds", "user asks"]
    whole = client.completions.create(model="red", prompt=prompts, echo=True, **GREEDY)
    streamed = ["", "", ""]
    for chunk in client.completions.create(model="red", prompt=prompts, echo=True, stream=True, **GREEDY):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [c.text for c in whole.choices]
    assert all(text.startswith(prompt) for text, prompt in zip(streamed, prompts, strict=True))


def test_echoed_token_ids_come_back_as_text(client: OpenAI, http: httpx.Client) -> None:
    answer = client.completions.create(model="tiny", prompt=tokens_of(http, "the lazy dog"), echo=True, max_tokens=2)
    assert answer.choices[0].text.startswith("the lazy dog")


def test_logprob_lists_run_in_parallel(client: OpenAI) -> None:
    answer = client.completions.create(model="red", prompt="the dog", logprobs=2, max_tokens=5, **GREEDY)
    lists = answer.choices[0].logprobs
    assert lists is not None
    assert lists.tokens is not None
    assert lists.text_offset is not None
    assert len(lists.tokens) == len(lists.token_logprobs or []) == len(lists.top_logprobs or []) == 5
    assert lists.text_offset == offsets(lists.tokens)
    for token, logprob, top in zip(lists.tokens, lists.token_logprobs or [], lists.top_logprobs or [], strict=True):
        assert top[token] == logprob


def test_a_prompt_can_be_scored_without_output(client: OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="the lazy dog", echo=True, logprobs=1, max_tokens=0)
    lists = answer.choices[0].logprobs
    assert lists is not None
    assert lists.token_logprobs is not None
    assert answer.choices[0].text == "the lazy dog" == "".join(lists.tokens or [])
    assert lists.token_logprobs[0] is None
    assert all(p is not None and p < 0 for p in lists.token_logprobs[1:])
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


def test_scores_of_a_prompt_are_the_logprobs_it_was_generated_with(client: OpenAI) -> None:
    made = client.completions.create(model="green", prompt="the dog", logprobs=1, max_tokens=6, **GREEDY).choices[0]
    more = {"return_token_ids": True, "ignore_eos": True}
    full = client.completions.create(
        model="green", prompt="the dog", max_tokens=6, temperature=0, extra_body=more
    ).choices[0]
    assert full.model_extra is not None
    ids = [*full.model_extra["prompt_token_ids"], *full.model_extra["token_ids"]]
    scored = client.completions.create(model="green", prompt=ids, echo=True, logprobs=1, max_tokens=0).choices[0]
    assert made.logprobs is not None
    assert scored.logprobs is not None
    assert (scored.logprobs.token_logprobs or [])[-6:] == pytest.approx(made.logprobs.token_logprobs, abs=1e-3)


def test_a_seed_gives_the_same_text_again(client: OpenAI) -> None:
    texts = {
        client.completions.create(model="tiny", prompt="the dog", seed=7, temperature=1.5, max_tokens=12)
        .choices[0]
        .text
        for _ in range(2)
    }
    assert len(texts) == 1


def test_logit_bias_decides(client: OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="a", max_tokens=3, logit_bias={"40": 100}, temperature=0)
    assert answer.choices[0].text == "FFF"


def test_tokens_can_be_named_by_id(client: OpenAI) -> None:
    more = {"return_tokens_as_token_ids": True, "ignore_eos": True}
    answer = client.completions.create(model="tiny", prompt="a", max_tokens=2, logprobs=1, extra_body=more)
    assert answer.choices[0].logprobs is not None
    assert all(token.startswith("token_id:") for token in answer.choices[0].logprobs.tokens or [])
