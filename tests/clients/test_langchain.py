"""LangChain's chat model for OpenAI's API."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

from .conftest import Server
from .forms import Seed


@pytest.fixture
def model(server: Server) -> ChatOpenAI:
    return ChatOpenAI(base_url=server.v1, api_key="none", model="tiny", max_tokens=100, temperature=0, max_retries=0)


HELLO = [SystemMessage("You know seeds."), HumanMessage("Name one.")]


def test_it_is_invoked(model: ChatOpenAI) -> None:
    answer = model.invoke(HELLO)
    assert isinstance(answer, AIMessage)
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0


def test_it_streams_what_it_says(model: ChatOpenAI) -> None:
    assert "".join(str(piece.content) for piece in model.stream(HELLO)) == model.invoke(HELLO).content


def test_it_answers_many(model: ChatOpenAI) -> None:
    asked: list[Any] = [f"{at} seeds" for at in range(8)]
    assert len(asyncio.run(model.abatch(asked))) == 8


@pytest.mark.parametrize("strict", [True, False])
def test_its_structured_output_is_of_the_form(model: ChatOpenAI, strict: bool) -> None:
    held = model.with_structured_output(Seed, method="json_schema", strict=strict)
    assert isinstance(held.invoke(HELLO), Seed)


def test_its_structured_output_streams(model: ChatOpenAI) -> None:
    held = model.with_structured_output(Seed, method="json_schema")
    assert isinstance(list(held.stream(HELLO))[-1], Seed)


def test_its_json_mode_is_json(model: ChatOpenAI) -> None:
    held = model.bind(response_format={"type": "json_object"})
    assert str(held.invoke(HELLO).content).lstrip().startswith("{")


def test_its_completions_answer(server: Server) -> None:
    texts = OpenAI(base_url=server.v1, api_key="none", model="tiny", max_tokens=8, max_retries=0)
    assert texts.invoke("The quick")
    assert "".join(texts.stream("The quick"))


def test_its_errors_are_openais(model: ChatOpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        model.invoke(HELLO, temperature=9)


def test_its_tools_are_called(model: ChatOpenAI) -> None:
    held = model.bind_tools([Seed], tool_choice="Seed")
    (call, *_) = held.invoke(HELLO).tool_calls
    assert call["name"] == "Seed"
    Seed.model_validate(call["args"])


def test_its_structured_output_goes_through_tools_too(model: ChatOpenAI) -> None:
    held = model.with_structured_output(Seed, method="function_calling")
    assert isinstance(held.invoke(HELLO), Seed)


def test_its_tool_calls_stream(model: ChatOpenAI) -> None:
    whole: Any = None
    for piece in model.bind_tools([Seed], tool_choice="Seed").stream(HELLO):
        whole = piece if whole is None else whole + piece
    Seed.model_validate(whole.tool_calls[0]["args"])
