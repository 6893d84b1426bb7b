"""No KV crosses from one adapter to another, nor from old bytes of a name to new ones."""

from __future__ import annotations

from aril.engine.engine import Engine
from aril.engine.request import Request
from aril.lora.adapter import AdapterRef
from aril.lora.store import content_digest
from builders.engines import greedy, make_engine, run

from .conftest import SHORT, MakeLLM, Oracle, prompt

SHARED = prompt(99, 600)


def test_one_shared_prompt_on_two_adapters_and_the_base_crosses_nothing(oracle: Oracle, make_llm: MakeLLM) -> None:
    llm = make_llm()
    who = ["qv", "all", None] * 3
    for output in llm.generate([SHARED] * 9, SHORT, adapter=who, use_tqdm=False):
        oracle.follows(output)


def test_a_prompt_is_cached_for_each_adapter_alone(oracle: Oracle, make_llm: MakeLLM) -> None:
    llm = make_llm()
    cached = []
    for adapter in ("qv", "all", None, "qv", "all", None):
        [output] = llm.generate([SHARED], SHORT, adapter=adapter, use_tqdm=False)
        oracle.follows(output)
        cached.append(output.num_cached_tokens > 0)
    assert cached == [False, False, False, True, True, True]


def test_other_bytes_under_an_old_name_answer_at_once(oracle: Oracle) -> None:
    old, new = (AdapterRef("A", at, content_digest(oracle.adapters[name])) for at, name in ((1, "qv"), (2, "mlp")))
    folders = {old: oracle.adapters["qv"], new: oracle.adapters["mlp"]}
    engine = make_engine(oracle.base, folders, max_num_batched_tokens=256)
    try:
        engine.unload_adapter(new, lambda: None)
        before = answer(engine, old)
        engine.unload_adapter(old, lambda: None)
        engine.load_adapter(new)
        after = answer(engine, new)
    finally:
        engine.close()
    assert before == oracle.continues("qv", SHARED, 8)
    assert after == oracle.continues("mlp", SHARED, 8)


def answer(engine: Engine, ref: AdapterRef) -> list[int]:
    """Eight tokens after the shared prompt."""
    [told] = run(engine, [Request("one", list(SHARED), greedy(8), ref)])
    return told.token_ids


def test_two_names_of_the_same_bytes_share_their_cache(oracle: Oracle) -> None:
    digest = content_digest(oracle.adapters["qv"])
    one, two = AdapterRef("one", 1, digest), AdapterRef("two", 1, digest)
    engine = make_engine(oracle.base, dict.fromkeys((one, two), oracle.adapters["qv"]), max_num_batched_tokens=256)
    try:
        run(engine, [Request("first", list(SHARED), greedy(2), one)])
        [told] = run(engine, [Request("second", list(SHARED), greedy(2), two)])
    finally:
        engine.close()
    assert told.num_cached > 0
