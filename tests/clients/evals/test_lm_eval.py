"""lm-eval through local-completions: what it measures of the server is what it measures of transformers.

Three small tasks of our own, one of each kind of request that it makes: scores of choices, scores of whole texts, and
greedy texts. Both sides have the same weights, in float32.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none"}

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

from ..conftest import Server

HERE = Path(__file__).parent
TASKS = ["seeds_choice", "seeds_text", "seeds_words"]
TOLERANCE = 1e-3  # of a log-likelihood
Results = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def beside_the_tasks() -> Iterator[None]:
    """Where they say that their data lies."""
    before = Path.cwd()
    os.chdir(HERE)
    yield
    os.chdir(before)


def measured(kind: str, **said: object) -> Results:
    """All results and samples of a model."""
    found = lm_eval.simple_evaluate(
        model=kind, model_args=said, tasks=TASKS, task_manager=TaskManager(include_path=str(HERE)), bootstrap_iters=0
    )
    assert found is not None
    return dict(found)


@pytest.fixture(scope="module")
def ours(server: Server, home: Path) -> Results:
    url, tokenizer = f"{server.v1}/completions", str(home / "model")
    return measured(
        "local-completions", model="tiny", base_url=url, tokenizer=tokenizer, max_length=512, num_concurrent=8
    )


@pytest.fixture(scope="module")
def theirs(home: Path) -> Results:
    return measured("hf", pretrained=str(home / "model"), dtype="float32", device="cpu", max_length=512, batch_size=4)


def responses(found: Results, task: str) -> list[Any]:
    """What each document was answered with, in their order."""
    samples = sorted(found["samples"][task], key=lambda sample: sample["doc_id"])
    return [response for sample in samples for response in sample["filtered_resps"]]


def test_choices_are_as_likely(ours: Results, theirs: Results) -> None:
    pairs = list(zip(responses(ours, "seeds_choice"), responses(theirs, "seeds_choice"), strict=True))
    assert len(pairs) == 4 * 32
    for (score, greedy), (expected, expected_greedy) in pairs:
        assert float(score) == pytest.approx(float(expected), abs=TOLERANCE)
        assert greedy == expected_greedy
    print(f"largest difference {max(abs(float(a[0]) - float(b[0])) for a, b in pairs):.1e}")


def test_whole_texts_are_as_likely(ours: Results, theirs: Results) -> None:
    pairs = list(zip(responses(ours, "seeds_text"), responses(theirs, "seeds_text"), strict=True))
    assert [float(a) for a, _ in pairs] == pytest.approx([float(b) for _, b in pairs], abs=TOLERANCE)


def test_greedy_texts_are_the_same(ours: Results, theirs: Results) -> None:
    """But for what the end cuts short of a character, which transformers shows as U+FFFD and Aril does not."""
    pairs = zip(responses(ours, "seeds_words"), responses(theirs, "seeds_words"), strict=True)
    assert [pair for pair in pairs if len({text.rstrip("\ufffd") for text in pair}) > 1] == []


def test_scores_are_the_same(ours: Results, theirs: Results) -> None:
    def scores(found: Results) -> dict[tuple[str, str], float]:
        return {
            (task, metric): value
            for task in TASKS
            for metric, value in found["results"][task].items()
            if isinstance(value, float) and "stderr" not in metric
        }

    assert scores(ours) == pytest.approx(scores(theirs), rel=1e-4)
    print(scores(ours))
