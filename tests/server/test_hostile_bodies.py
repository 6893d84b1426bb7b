"""Bodies made to cost the server more than they cost the sender."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aril.core.body import Body
from aril.server.schemas import ChatRequest, CompletionRequest, DetokenizeRequest
from pydantic import ValidationError

MANY = 10_000
BRANCHES = 8  # a union may have one finding for each of its branches


@pytest.mark.parametrize(
    ("schema", "field", "value"),
    [
        (CompletionRequest, "prompt", [{}] * MANY),
        (CompletionRequest, "prompt", [[]] * MANY + [{}]),
        (CompletionRequest, "stop", [1] * MANY),
        (CompletionRequest, "stop_token_ids", ["x"] * MANY),
        (CompletionRequest, "logit_bias", {str(at): "x" for at in range(MANY)}),
        (CompletionRequest, "logit_bias", {str(at): True for at in range(MANY)}),
        (ChatRequest, "messages", [{}] * MANY),
        (ChatRequest, "messages", [{"role": "user", "tool_calls": [1] * MANY}]),
        (ChatRequest, "tools", [1] * MANY),
        (DetokenizeRequest, "tokens", ["x"] * MANY),
    ],
)
def test_of_many_faults_the_first_is_enough(schema: type[Body], field: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        schema.model_validate_json(json.dumps({"model": "tiny", "prompt": "a", "messages": [], field: value}))
    of_field = [found for found in caught.value.errors() if found["loc"][0] == field]
    assert 0 < len(of_field) <= BRANCHES


def test_a_conversation_has_so_many_messages_and_no_more() -> None:
    endless = {"model": "tiny", "messages": [{"role": "a"}] * ((1 << 16) + 1)}
    with pytest.raises(ValidationError, match="at most 65536"):
        ChatRequest.model_validate_json(json.dumps(endless))
