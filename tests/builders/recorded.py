"""Checkpoints that the field's tools wrote, with what they must answer; tests that want one skip where it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from aril.models.loader import load_model
from aril.models.source import locate
from safetensors.torch import load_file

from builders.pages import Pages

HOME = Path(__file__).parents[3] / "shared" / "data" / "quantised"
TOLERANCE = 2e-3  # of logits, in float32
DIVERGENCE = 5e-4  # mean KL; the formats themselves stand 5e-3 to 8e-3 from bfloat16, a turned rounding costs 2e-4
LIKELY = 0.5  # of logits: what a turned rounding moves them by


def recorded(name: str) -> Path:
    """The folder of the checkpoint `name`."""
    folder = HOME / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return folder


def assert_answers_as_recorded(folder: Path, reference: str = "exact") -> None:
    """The prompt's logits are the recorded ones, and so are all greedy tokens after it."""
    told = json.loads((folder / "reference.json").read_text())
    pages = Pages(load_model(locate(str(folder)), dtype=torch.float32, device=torch.device("cpu")))
    logits = pages.run({"row": told["prompt_ids"]})["row"]
    expected = load_file(folder / "reference_logits.safetensors")[reference]
    torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE)
    greedy = [int(logits[-1].argmax())]
    for _ in told["references"][reference]["greedy"][1:]:
        greedy.append(int(pages.run({"row": greedy[-1:]})["row"][-1].argmax()))
    assert greedy == told["references"][reference]["greedy"]


def assert_foretells_as_recorded(folder: Path, reference: str = "exact") -> None:
    """The prompt's next-token distributions are the recorded ones, and each recorded token is as likely as the best.

    For formats that round inputs: where a processor sums in another order, a number here and there falls to the other
    side of a rounding, and logits from that token on move by tenths (in torch's own model of it as well).
    """
    told = json.loads((folder / "reference.json").read_text())
    prompt, greedy = told["prompt_ids"], torch.tensor(told["references"][reference]["greedy"])
    pages = Pages(load_model(locate(str(folder)), dtype=torch.float32, device=torch.device("cpu")))
    logits = pages.run({"row": [*prompt, *greedy[:-1].tolist()]})["row"]
    found = logits[: len(prompt)].log_softmax(-1)
    expected = load_file(folder / "reference_logits.safetensors")[reference].log_softmax(-1)
    assert (expected.exp() * (expected - found)).sum(-1).mean() < DIVERGENCE
    answers = logits[len(prompt) - 1 :]
    assert (answers.gather(1, greedy[:, None])[:, 0] > answers.amax(1) - LIKELY).all()
