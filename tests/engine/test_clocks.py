"""What is timed, and what is not."""

import pytest
from aril.core.metrics import REGISTRY
from aril.engine.engine import Engine
from aril.engine.request import BACKGROUND, Request
from builders.engines import drain, greedy, make_engine
from builders.models import make_model


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return make_engine(make_model(tmp_path_factory.mktemp("model")))


def num_told() -> list[float]:
    names = ("time_to_first_token_seconds", "request_seconds", "request_prompt_tokens", "request_generation_tokens")
    return [REGISTRY.get_sample_value(f"aril_{name}_count") or 0.0 for name in names]


@pytest.mark.parametrize(("priority", "counted"), [(0, 1), (BACKGROUND, 0)])
def test_work_that_nobody_waits_for_is_not_timed(priority: int, counted: int, engine: Engine) -> None:
    before = num_told()
    engine.add(Request("one", [5, 6, 7], greedy(3), priority=priority))
    drain(engine)
    assert [after - ago for after, ago in zip(num_told(), before, strict=True)] == [counted] * 4
