"""LiteLLM, which calls any server of OpenAI's API `openai/`."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would be fetched as it is imported

from typing import Any

import litellm
import pytest

from .conftest import Server
from .forms import GREEDY, HELLO, Seed


@pytest.fixture
def there(server: Server) -> dict[str, Any]:
    """Where to ask, and what."""
    fields = {**GREEDY, "model": "openai/tiny", "api_base": server.v1, "api_key": "none", "num_retries": 0}
    return {"messages": HELLO, **fields}


def test_it_completes(there: dict[str, Any]) -> None:
    answer = litellm.completion(**there)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0


def test_it_streams_what_it_says(there: dict[str, Any]) -> None:
    whole = litellm.completion(**there).choices[0].message.content
    pieces = litellm.completion(**there, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole


def test_its_answers_are_of_a_form(there: dict[str, Any]) -> None:
    answer = litellm.completion(**{**there, "max_tokens": 100}, response_format=Seed)
    Seed.model_validate_json(answer.choices[0].message.content)


def test_it_completes_texts(there: dict[str, Any]) -> None:
    where = {name: value for name, value in there.items() if name != "messages"}
    answer = litellm.text_completion(**{**where, "model": "text-completion-openai/tiny"}, prompt="The quick")
    assert answer.choices[0].text


def test_its_tools_are_called(there: dict[str, Any]) -> None:
    function = {"name": "plant", "parameters": Seed.model_json_schema()}
    tools = [{"type": "function", "function": function}]
    answer = litellm.completion(**{**there, "max_tokens": 200}, tools=tools, tool_choice="required")
    Seed.model_validate_json(answer.choices[0].message.tool_calls[0].function.arguments)


def test_it_embeds(there: dict[str, Any]) -> None:
    where = {name: value for name, value in there.items() if name in ("model", "api_base", "api_key")}
    assert len(litellm.embedding(**where, input=["a seed"]).data[0]["embedding"]) == 64


def test_its_errors_are_of_their_kinds(there: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**{**there, "temperature": 9})
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**there, "model": "openai/gpt-4o"})
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**there, "messages": [{"role": "user", "content": "a" * 20_000}]})
