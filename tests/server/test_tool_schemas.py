"""The schema of a list of calls: as strict as those of the tools in it, wherever their references lead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aril.engine.grammar.asked import StructuredOutputs
from aril.engine.params import SamplingParams
from aril.server.tool_schemas import schema_of_calls
from builders.engines import ask, make_engine, run
from builders.models import make_model
from jsonschema import Draft202012Validator

TOOLS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "tool_schemas.json").read_text())
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}, "self": {"$ref": "#"}, "plain": {"const": {"$ref": "#/x"}}},
    "$defs": {"node": {"type": "object", "properties": {"of": {"$ref": "#/$defs/node"}, "n": {"type": "integer"}}}},
}


def of_calls(*calls: tuple[str, Any], most: int | None = None, tools: dict[str, Any] | None = None) -> bool:
    """Whether the schema of the calls of `tools` takes these."""
    schema = schema_of_calls(tools or {"plant": TREE, "now": {"type": "object", "maxProperties": 0}}, most=most)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema).is_valid([{"name": name, "arguments": given} for name, given in calls])


@pytest.mark.parametrize(
    ("arguments", "valid"),
    [
        ({"root": {"of": {"n": 1}}}, True),
        ({"root": {"of": {"n": "1"}}}, False),
        ({"self": {"root": {"n": 1}}}, True),
        ({"self": {"root": 1}}, False),
        ({"plain": {"$ref": "#/x"}}, True),
        ({"plain": {"$ref": "#/$defs/tool0/x"}}, False),
    ],
)
def test_references_lead_to_the_same_place(arguments: Any, valid: bool) -> None:
    assert of_calls(("plant", arguments)) is valid


def test_each_call_is_one_of_a_tool_and_there_is_one_at_least() -> None:
    assert of_calls(("now", {}), ("plant", {}))
    assert not of_calls()
    assert not of_calls(("now", {"root": {}}))
    assert not of_calls(("launch", {}))
    assert not of_calls(("now", {}), ("now", {}), most=1)


def test_calls_of_real_tools_are_valid(tmp_path: Path) -> None:
    engine = make_engine(make_model(tmp_path / "model"), kv_cache_memory="16MiB", max_num_seqs=16)
    enders = {
        token: 4.0 for token in range(engine.model.vocab_size) if set(engine.text.token_bytes(token)) & set(b'"]}')
    }
    asked = StructuredOutputs(json=schema_of_calls(TOOLS, most=2))
    params = [
        SamplingParams(seed=seed, max_tokens=450, structured_outputs=asked, logit_bias=enders) for seed in range(12)
    ]
    found = run(engine, ask([[40 + seed, 50] for seed in range(12)], params))
    engine.close()
    whole = [json.loads(told.text) for told in found if told.finish_reason == "stop"]
    assert len(whole) > len(found) // 2
    for call in (call for calls in whole for call in calls):
        Draft202012Validator(TOOLS[call["name"]]).validate(call["arguments"])
