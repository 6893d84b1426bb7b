"""Perplexity: of the shipped text, the same in every reader of the same numbers."""

from __future__ import annotations

import math
from itertools import chain

import pytest
import torch
from aril.bench.perplexity import NUM_WINDOWS, TEXT, WINDOW, Reading, perplexity, read, read_elsewhere, windows_of
from aril.core.errors import InvalidRequest
from builders.models import make_model
from transformers import AutoModelForCausalLM

SMALL = {"num_windows": 3, "window": 40}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("perplexity")))


def test_the_text_fills_twenty_thousand_tokens_of_any_vocabulary() -> None:
    most_characters_in_a_token = 5  # on average, of English in the largest vocabularies
    assert NUM_WINDOWS * WINDOW >= 20_000
    assert len(TEXT.read_text(encoding="ascii")) >= NUM_WINDOWS * WINDOW * most_characters_in_a_token


def test_windows_follow_each_other_and_do_not_overlap(model: str) -> None:
    long, short = windows_of(model, num_windows=2, window=60), windows_of(model, num_windows=4, window=30)
    assert [*chain(*long)] == [*chain(*short)]


def test_it_is_what_transformers_computes(model: str) -> None:
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    windows = torch.tensor(windows_of(model, **SMALL))
    with torch.no_grad():
        logits = network(input_ids=windows).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    assert perplexity(model, **SMALL, dtype="float32") == pytest.approx(math.exp(loss.item()), rel=1e-5)


def test_a_reader_in_a_process_of_its_own_finds_the_same(model: str) -> None:
    windows = windows_of(model, **SMALL)
    ours = read(model, windows, dtype="float32")
    assert read_elsewhere("transformers", model, windows).losses == pytest.approx(ours.losses, abs=1e-4)


def test_a_change_comes_with_its_standard_error() -> None:
    worse, better = Reading([2.1, 1.1, 3.1, 0.1], 1.0), Reading([2.0, 1.0, 3.0, 0.0], 1.0)
    change, error = worse.beside(better)
    assert change == pytest.approx(100 * (math.exp(0.1) - 1))
    assert error == pytest.approx(0, abs=1e-9)


def test_a_text_without_a_whole_window_is_refused(model: str) -> None:
    with pytest.raises(InvalidRequest, match="fills no window of 40"):
        perplexity(model, text="too short", window=40)
