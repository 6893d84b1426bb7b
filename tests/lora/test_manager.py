"""Adapters in memory: each pays for its own rank, keeps its numbers wherever it is moved, and fails alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from aril.core.errors import DoesNotFit, InvalidAdapter, Unavailable
from aril.lora.adapter import AdapterRef
from aril.lora.manager import LoraManager
from builders.adapters import make_adapter
from safetensors.torch import load_file

from .conftest import AdaptedLinear, Shelf, acquire, fetch, make_manager

Make = Callable[..., AdapterRef]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def make(tmp_path: Path, loaded: Any, shelf: Shelf) -> Make:
    """Make an adapter by name and put it on the shelf."""
    return lambda name, **config: shelf.put(make_adapter(tmp_path / name, loaded, **config))


def own_bytes(shelf: Shelf, ref: AdapterRef) -> int:
    """Bytes of the tensors in the file."""
    return sum(t.nbytes for t in load_file(shelf(ref) / "adapter_model.safetensors").values())


@pytest.mark.parametrize("config", [{"r": 8}, {"r": 1}, {"r": 3, "targets": "all-linear"}], ids=str)
def test_memory_is_paid_by_true_rank_beside_one_of_rank_256(
    config: dict[str, Any], make: Make, shelf: Shelf, linears: dict[str, AdaptedLinear]
) -> None:
    manager = make_manager(shelf, linears)
    acquire(manager, make("wide", r=256))
    before = manager.used_bytes
    ref = make("slim", **config)
    acquire(manager, ref)
    assert manager.used_bytes - before <= 1.1 * own_bytes(shelf, ref)


def test_all_adapters_keep_their_numbers_through_evictions_and_moves(
    make: Make, shelf: Shelf, linears: dict[str, AdaptedLinear]
) -> None:
    refs = [make(str(rank), r=rank, seed=rank) for rank in (2, 4, 8, 3, 6, 5)]
    alone = {ref: delta_alone(shelf, linears, ref) for ref in refs}
    tight = make_manager(shelf, linears, arena_bytes=3 * own_bytes(shelf, refs[2]) // 2, max_slots=3)
    for ref in [refs[at] for at in (0, 1, 2, 3, 4, 5, 0, 2, 1, 5, 3, 0, 4)]:
        assert torch.equal(delta_of(tight, linears, ref), alone[ref])


def test_a_move_keeps_what_a_busy_adapter_adds(make: Make, shelf: Shelf, linears: dict[str, AdaptedLinear]) -> None:
    first, busy, third = make("first", r=4), make("busy", r=4, seed=1), make("third", r=8, seed=2)
    manager = make_manager(shelf, linears, arena_bytes=3 * own_bytes(shelf, busy))
    acquire(manager, first)
    acquire(manager, busy)
    manager.release(first)
    manager.forget(first)
    acquire(manager, third)  # fits only once `busy` has moved down
    assert manager.num_slots_used == 2
    assert torch.equal(delta_of(manager, linears, busy), delta_alone(shelf, linears, busy))


def test_two_names_of_the_same_bytes_share_a_slot(make: Make, shelf: Shelf, linears: dict[str, AdaptedLinear]) -> None:
    manager = make_manager(shelf, linears)
    ref = make("one")
    assert acquire(manager, ref) == acquire(manager, AdapterRef("two", 5, ref.digest))
    assert manager.num_slots_used == 1


def test_no_slot_means_not_now_until_someone_releases(
    make: Make, shelf: Shelf, linears: dict[str, AdaptedLinear]
) -> None:
    manager = make_manager(shelf, linears, max_slots=1)
    one, two = make("one"), make("two", seed=1)
    acquire(manager, one)
    assert acquire(manager, two) is None
    manager.release(one)
    assert acquire(manager, two) == 1


def test_a_pinned_adapter_is_loaded_before_anyone_asks(
    make: Make, shelf: Shelf, linears: dict[str, AdaptedLinear]
) -> None:
    manager = make_manager(shelf, linears)
    ref = make("pinned")
    manager.pin(ref)
    fetch(manager, ref)
    assert [loaded for _, loaded in manager.take_loads()] == [ref]


def test_a_bad_file_fails_its_own_adapter_only(make: Make, shelf: Shelf, linears: dict[str, AdaptedLinear]) -> None:
    manager = make_manager(shelf, linears)
    bad, good = make("bad"), make("good", seed=1)
    (shelf(bad) / "adapter_model.safetensors").write_bytes(b"broken")
    with pytest.raises(InvalidAdapter, match="not a safetensors file"):
        acquire(manager, bad)
    assert acquire(manager, good) == 1


def test_a_mended_file_is_read_after_the_next_prefetch(
    make: Make, shelf: Shelf, linears: dict[str, AdaptedLinear]
) -> None:
    manager = make_manager(shelf, linears)
    ref = make("mended")
    path = shelf(ref) / "adapter_model.safetensors"
    path.rename(path.with_suffix(".away"))
    with pytest.raises(InvalidAdapter):
        acquire(manager, ref)
    path.with_suffix(".away").rename(path)
    manager.forget(ref)
    assert acquire(manager, ref) == 1


def test_an_unknown_digest_is_told_to_those_who_want_it(shelf: Shelf, linears: dict[str, AdaptedLinear]) -> None:
    with pytest.raises(Unavailable, match="'nowhere' could not be read"):
        acquire(make_manager(shelf, linears), AdapterRef("nowhere", 1, "0" * 64))


def test_an_adapter_larger_than_the_arena_is_refused_with_the_flag(
    make: Make, shelf: Shelf, linears: dict[str, AdaptedLinear]
) -> None:
    ref = make("large")
    with pytest.raises(DoesNotFit, match="--adapter-memory"):
        acquire(make_manager(shelf, linears, arena_bytes=1024), ref)


def test_the_host_keeps_the_newest_adapters_within_its_bound(
    make: Make, shelf: Shelf, linears: dict[str, AdaptedLinear]
) -> None:
    refs = [make(str(seed), seed=seed) for seed in range(4)]
    manager = make_manager(shelf, linears, cache_bytes=int(2.5 * own_bytes(shelf, refs[0])))
    for ref in refs:
        fetch(manager, ref)
    assert [manager.is_ready(ref) for ref in refs] == [False, False, True, True]


def test_rows_are_none_when_nobody_has_an_adapter(shelf: Shelf, linears: dict[str, AdaptedLinear]) -> None:
    assert make_manager(shelf, linears).rows([0, 0, 0]) is None


def delta_of(manager: LoraManager, linears: dict[str, AdaptedLinear], ref: AdapterRef) -> torch.Tensor:
    """What `ref` adds to all Linears, through their hooks; taken and given back."""
    slot = acquire(manager, ref)
    assert slot is not None
    outputs = []
    for linear in linears.values():
        x = torch.linspace(-1, 1, 2 * linear.in_features).view(2, -1)
        y = torch.zeros(2, sum(part.size for part in linear.parts))
        assert linear.delta is not None
        linear.delta.add_(y, x, manager.rows([slot, 0]))
        outputs.append(y[0])
    manager.release(ref)
    return torch.cat(outputs)


def delta_alone(shelf: Shelf, linears: dict[str, AdaptedLinear], ref: AdapterRef) -> torch.Tensor:
    """The same from a manager that holds nothing else."""
    copies = {name: AdaptedLinear(linear.in_features, linear.parts) for name, linear in linears.items()}
    return delta_of(make_manager(shelf, copies), copies, ref)
