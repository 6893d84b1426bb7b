"""What of a pooled vector a caller gets, and which dimensions a model's config allows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from aril.core.errors import InvalidRequest
from aril.engine.embedding import check_dimensions, shaped, sizes_of
from aril.engine.params import SamplingParams
from builders.engines import make_engine
from builders.models import make_model

VECTOR = np.array([3.0, 4.0, 12.0], np.float32)


def test_a_vector_that_is_cut_gets_length_one_again() -> None:
    assert shaped(VECTOR, dimensions=2).tolist() == pytest.approx([0.6, 0.8])
    assert shaped(VECTOR, dimensions=2, normalize=False).tolist() == [3.0, 4.0]


def test_a_vector_of_nothing_stays_so() -> None:
    assert shaped(np.zeros(3, np.float32)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("config", "allowed", "refused"),
    [
        ({}, [64], [1, 32, 63, 65]),
        ({"is_matryoshka": True}, [1, 32, 64], [0, -1, 65]),
        ({"matryoshka_dimensions": [16, 32]}, [16, 32, 64], [8, 65]),
        ({"is_matryoshka": True, "matryoshka_dimensions": [16]}, [16, 64], [32]),
    ],
)
def test_dimensions_are_those_that_the_config_names(
    config: dict[str, object], allowed: list[int], refused: list[int]
) -> None:
    sizes = sizes_of(SimpleNamespace(**config), 64)
    for dimensions in allowed:
        check_dimensions(dimensions, sizes)
    for dimensions in refused:
        with pytest.raises(InvalidRequest) as caught:
            check_dimensions(dimensions, sizes)
        assert caught.value.param == "dimensions"


def test_a_models_config_is_read_for_it(tmp_path: Path) -> None:
    engine = make_engine(make_model(tmp_path, matryoshka_dimensions=[8, 16]), pooling_type="mean")
    engine.close()
    assert (list(engine.model.embedding_sizes), engine.model.pooling) == ([8, 16, 64], "mean")


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 5}, {"max_tokens": 0, "n": 2}, {"max_tokens": 0, "prompt_logprobs": 1}]
)
def test_nothing_else_is_to_be_had_with_pooling(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(pooling="mean", **fields)  # type: ignore[arg-type]
    assert caught.value.param == "pooling"
