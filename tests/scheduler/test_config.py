"""An operator's choices: checked once, and refused with the flag and what it takes."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest
from aril.core.errors import InvalidRequest
from aril.engine.config import EngineConfig, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("2GiB", 2 * 1024**3), ("512 mib", 512 * 1024**2), ("1.5GB", 1_500_000_000), ("8B", 8)],
)
def test_a_size_is_read_in_the_unit_it_names(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "2G", "-1", "two", "1e9", "nan"])
def test_a_size_without_a_known_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_bytes(text)


def test_a_value_may_be_the_text_of_its_flag() -> None:
    config = EngineConfig(model="demo", kv_cache_memory="1MiB", enable_prefix_caching="false", seed="7")  # type: ignore[arg-type]
    assert (config.kv_cache_memory, config.enable_prefix_caching, config.seed) == (1024**2, False, 7)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dtype": "int3"}, r"--dtype int3: there are auto, float32, bfloat16, float16"),
        ({"block_size": 17}, r"--block-size 17: there are 1, 2, 4"),
        ({"max_num_seqs": 0}, r"--max-num-seqs 0 is out of range; it takes 1 or more"),
        ({"gpu_memory_utilization": float("nan")}, r"--gpu-memory-utilization nan .* from 0.01 to 1.0"),
        ({"kv_cache_memory": "lots"}, r"--kv-cache-memory lots: 'lots' is no size"),
        ({"max_model_len": "abc"}, r"--max-model-len abc: it takes a whole number, not 'abc'$"),
        ({"gpu_memory_utilization": "most"}, r"--gpu-memory-utilization most: it takes a number, not 'most'$"),
        ({"enforce_eager": "maybe"}, r"--enforce-eager maybe: 'maybe' is neither true nor false"),
        ({"max_num_seqs": None}, r"--max-num-seqs None"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, r"--max-num-batched-tokens 32 is under --max-num-seqs 64"),
    ],
)
def test_a_wrong_value_is_refused_with_its_flag(values: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        EngineConfig(model="demo", **values)  # type: ignore[arg-type]


def test_every_field_says_its_flag_and_its_help() -> None:
    assert all(each.metadata["flag"] and each.metadata["help"] for each in fields(EngineConfig))


def test_a_config_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        EngineConfig(model="demo").seed = 1  # type: ignore[misc]
