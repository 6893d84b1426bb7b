"""The model card says what was done, with what, and what it cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aril.commands._quantize.card import UNKNOWN, Facts, Measured, card
from aril.commands._quantize.scheme import Scheme

FACTS = Facts(
    base="owner/model",
    base_about="bfloat16",
    licence="apache-2.0",
    scheme=Scheme("gptq", 4, 64, sym=False, desc_act=True),
    data="7 samples of data.jsonl, 900 tokens",
    versions={"gptqmodel": "7.7.0", "torch": "2.13.0"},
    seconds=61.0,
    bytes_before=2_000_000_000,
    bytes_after=600_000_000,
    measured=Measured(before=10.0, after=10.25, num_tokens=20_480, text="persuasion.txt"),
    notes=("The base was dequantised.",),
)


@pytest.mark.parametrize(
    "said",
    [
        "license: apache-2.0",
        "base_model: owner/model",
        "gptq, 4 bits, groups of 64, asymmetric, act order",
        "7 samples of data.jsonl, 900 tokens",
        "gptqmodel 7.7.0, torch 2.13.0",
        "600.0 MB, of 2.00 GB in 16 bits",
        "10.000 before, 10.250 after (+2.50%), 20,480 tokens of persuasion.txt",
        "- The base was dequantised.",
    ],
)
def test_a_card_says(said: str) -> None:
    assert said in card(FACTS)


def test_a_perplexity_that_was_not_measured_is_not_made_up() -> None:
    assert "| perplexity | not measured |" in card(replace(FACTS, measured=None))


def test_a_licence_that_is_not_known_is_not_made_up() -> None:
    text = card(replace(FACTS, licence=UNKNOWN))
    assert "license:" not in text
    assert "that of the base" in text
