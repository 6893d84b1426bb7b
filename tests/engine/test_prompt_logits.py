"""Every logit of a prompt, for those who call the engine in this process: what PEFT says, whatever else runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from aril.engine.request import Request
from aril.lora.adapter import AdapterRef
from aril.lora.store import content_digest
from builders.adapters import load_base, make_adapter, with_adapter
from builders.engines import drain, greedy, make_engine
from builders.models import make_model

PROMPT = list(range(5, 45))
SCORED = greedy(1, prompt_logits=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapter(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapter") / "loud", folder)


@torch.no_grad()
def test_they_are_those_of_peft_at_every_position_but_the_last(folder: Path, adapter: Path) -> None:
    ref = AdapterRef("loud", 1, content_digest(adapter))
    engine = make_engine(
        folder, {ref: adapter}, max_num_batched_tokens=16, max_num_seqs=4
    )  # so the prompt comes in parts
    engine.add(Request("one", PROMPT, SCORED, ref))
    engine.add(Request("other", PROMPT, greedy(8)))
    found = torch.cat(drain(engine)["one", 0].prompt_logits or [])
    expected = with_adapter(folder, adapter)(torch.tensor([PROMPT])).logits[0, :-1]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_cached_beginning_is_computed_again_for_them(folder: Path) -> None:
    engine = make_engine(folder)
    engine.add(Request("first", PROMPT, greedy(1)))
    drain(engine)
    engine.add(Request("again", PROMPT, SCORED))
    found = torch.cat(drain(engine)["again", 0].prompt_logits or [])
    with torch.no_grad():
        expected = load_base(folder)(torch.tensor([PROMPT])).logits[0, :-1]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_rules_of_sampling_do_not_touch_them(folder: Path) -> None:
    engine = make_engine(folder)
    engine.add(Request("plain", PROMPT, SCORED))
    engine.add(Request("ruled", PROMPT, dataclasses.replace(SCORED, logit_bias={7: 100.0}, prompt_logprobs=1)))
    told = drain(engine)
    plain, ruled = (torch.cat(told[name, 0].prompt_logits or []) for name in ("plain", "ruled"))
    torch.testing.assert_close(plain, ruled)
    assert len(told["ruled", 0].prompt_logprobs or []) == len(PROMPT)


def test_who_does_not_ask_gets_none(folder: Path) -> None:
    engine = make_engine(folder)
    engine.add(Request("one", PROMPT, greedy(2)))
    assert drain(engine)["one", 0].prompt_logits is None
