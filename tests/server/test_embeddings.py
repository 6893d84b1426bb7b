"""POST /v1/embeddings, asked by OpenAI's client: every form of input, both encodings, on the base and on adapters."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from numpy.typing import NDArray
from openai import OpenAI

from .conftest import CONTEXT

TEXTS = ["the quick brown fox", "a pomegranate", "Déjà vu 🙂"]


def vectors(client: OpenAI, given: Any, model: str = "tiny", **fields: Any) -> NDArray[np.float64]:
    """One row for each input, in order; without `encoding_format` the client asks for base64 and decodes it."""
    answer = client.embeddings.create(model=model, input=given, **fields)
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    return np.array([one.embedding for one in answer.data])


def raw(http: httpx.Client, **fields: Any) -> Any:
    answer = http.post("/v1/embeddings", json={"model": "tiny", "input": "hi", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("model", ["tiny", "red", "org/blue"])
def test_both_encodings_are_the_same_numbers(client: OpenAI, model: str) -> None:
    as_floats = vectors(client, TEXTS, model, encoding_format="float")
    assert as_floats.shape == (3, 64)
    np.testing.assert_allclose(vectors(client, TEXTS, model), as_floats, atol=1e-6)


def test_base64_is_of_little_endian_float32(http: httpx.Client) -> None:
    [written] = raw(http, encoding_format="base64")["data"]
    [plain] = raw(http)["data"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(written["embedding"]), "<f4"), plain["embedding"], 1e-6)


def test_every_form_of_input_is_the_same_text(client: OpenAI, http: httpx.Client) -> None:
    ids = http.post("/tokenize", json={"model": "tiny", "prompt": TEXTS[0]}).json()["tokens"]
    [one], *others = (vectors(client, given) for given in (TEXTS[0], [TEXTS[0]], ids, [ids]))
    for other in others:
        np.testing.assert_allclose(other, [one], atol=1e-6)


def test_an_adapter_embeds_otherwise_than_the_base(client: OpenAI) -> None:
    found = [vectors(client, TEXTS[0], model)[0] for model in ("tiny", "red", "green")]
    assert all(np.abs(one - other).max() > 1e-3 for one, other in ((found[0], found[1]), (found[1], found[2])))


def test_many_texts_at_once_embed_as_each_alone(client: OpenAI) -> None:
    with ThreadPoolExecutor(12) as pool:
        models = ["tiny", "red", "green", "org/blue"] * 3
        together = list(pool.map(lambda model: vectors(client, TEXTS, model, extra_body={"pooling": "mean"}), models))
    for model, found in zip(models, together, strict=True):
        alone = [vectors(client, text, model, extra_body={"pooling": "mean"})[0] for text in TEXTS]
        np.testing.assert_allclose(found, alone, atol=1e-5)


def test_vectors_have_length_one_unless_normalize_is_false(client: OpenAI) -> None:
    assert np.linalg.norm(vectors(client, TEXTS), axis=1) == pytest.approx([1, 1, 1], abs=1e-6)
    plain = vectors(client, TEXTS, extra_body={"normalize": False})
    assert (np.linalg.norm(plain, axis=1) > 2).all()


def test_the_last_token_is_pooled_unless_the_mean_is_asked_for(client: OpenAI) -> None:
    default, last, mean = (
        vectors(client, TEXTS, extra_body=more) for more in ({}, {"pooling": "last"}, {"pooling": "mean"})
    )
    np.testing.assert_allclose(default, last, atol=1e-6)
    assert np.abs(last - mean).max() > 1e-3


def test_only_the_end_of_an_input_counts_when_asked(client: OpenAI) -> None:
    whole = vectors(client, [[5, 6, 7, 8]])
    cut = vectors(client, [[1, 2, 3, 5, 6, 7, 8]], extra_body={"truncate_prompt_tokens": 4})
    np.testing.assert_allclose(cut, whole, atol=1e-5)


def test_an_input_may_fill_the_context_and_no_more(client: OpenAI) -> None:
    assert vectors(client, [[5] * CONTEXT]).shape == (1, 64)
    with pytest.raises(openai.BadRequestError) as caught:
        vectors(client, [[5] * (CONTEXT + 1)])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    assert str(CONTEXT) in caught.value.message
    assert str(CONTEXT + 1) in caught.value.message


def test_usage_counts_the_tokens_of_all_inputs(client: OpenAI) -> None:
    usage = client.embeddings.create(model="tiny", input=[[5, 6], [7, 8, 9]]).usage
    assert (usage.prompt_tokens, usage.total_tokens) == (5, 5)


def test_the_answer_names_model_request_and_speaker(http: httpx.Client) -> None:
    answer = http.post("/v1/embeddings", json={"model": "red", "input": "a", "request_id": "mine", "metadata": {}})
    assert set(answer.json()) == {"object", "data", "model", "usage"}
    assert answer.json()["model"] == "red"
    assert answer.headers["x-request-id"] == "mine"
    assert answer.headers["x-aril-adapter"] == "red@1"
    assert answer.headers["x-aril-ignored-fields"] == "metadata"


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": ["a", ""]}, "input"),
    ({"input": [[]]}, "input"),
    ({"input": [1, "a"]}, "input"),
    ({"input": {"text": "a"}}, "input"),
    ({"input": ["a"] * 2049}, "input"),
    ({"input": [512]}, "input[0]"),
    ({"input": [[5, -1]]}, "input[1]"),
    ({"encoding_format": "int8"}, "encoding_format"),
    ({"dimensions": 32}, "dimensions"),
    ({"dimensions": 0}, "dimensions"),
    ({"dimensions": 65}, "dimensions"),
    ({"dimensions": True}, "dimensions"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": CONTEXT + 1}, "truncate_prompt_tokens"),
    ({"pooling": "cls"}, "pooling"),
    ({"normalize": 1}, "normalize"),
    ({"add_special_tokens": "no"}, "add_special_tokens"),
    ({"priority": "high"}, "priority"),
    ({"messages": [{"role": "user", "content": "hi"}]}, "messages"),
    ({"endianness": "big"}, "endianness"),
    ({"embed_dtype": "bfloat16"}, "embed_dtype"),
    ({"use_activation": False}, "use_activation"),
]


@pytest.mark.parametrize(("fault", "param"), FAULTS, ids=[json.dumps(fault)[:50] for fault, _ in FAULTS])
def test_a_fault_in_an_embedding_request_is_named(http: httpx.Client, fault: dict[str, Any], param: str) -> None:
    answer = http.post("/v1/embeddings", json={"model": "tiny", "input": "hi", **fault})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_the_models_own_dimensions_may_be_asked_for(client: OpenAI) -> None:
    assert vectors(client, "a", dimensions=64).shape == (1, 64)


def test_an_unknown_model_embeds_nothing(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="gpt-4", input="a")
