"""Padded steps give the rows the numbers of plain ones, and so do recorded ones."""

from pathlib import Path

import pytest
import torch
from aril.core.errors import Unsupported
from aril.core.platform import detect
from aril.engine.engine import Engine
from aril.engine.graphs import Frame, Graphed, Recording, Tapes, num_spare_blocks, sizes_up_to, spare_rows
from aril.engine.inputs import Packer, RowState
from aril.engine.kv.tensors import allocate
from aril.engine.params import SamplingParams
from aril.engine.passes import Eager
from aril.engine.request import Request
from aril.engine.step import NewRow, Row
from aril.kernels import dispatch
from aril.kernels.ops.matmul import linear
from aril.lora.adapter import AdapterRef
from aril.models.attention.base import choose
from aril.models.loader import load_model
from aril.models.source import locate
from builders.adapters import make_adapter
from builders.engines import ask, greedy, make_config, make_engine, run
from builders.models import make_model

BLOCK_SIZE = 4


class NoAdapters:
    """Every slot is 0."""

    def rows(self, slots: list[int]) -> None:
        assert not any(slots)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def make_pass(folder: Path, num_blocks: int) -> Eager:
    platform = detect("cpu")
    network = load_model(locate(str(folder)), dtype="float32", device=platform.device)
    packer = Packer(max_tokens=32, max_rows=8, max_blocks=20, block_size=BLOCK_SIZE, device=platform.device)
    caches = allocate(network.attention_specs, num_blocks, BLOCK_SIZE, platform.device)
    return Eager(network, choose("auto", network.attention_specs, platform), caches, packer, NoAdapters())


def test_spare_rows_leave_the_others_as_they_are(folder):
    eager = make_pass(folder, 6 + num_spare_blocks(BLOCK_SIZE))
    states = [RowState(NewRow(str(at), [7, 8 + at, 9], 3, SamplingParams(), 0, 0, (at,))) for at in range(3)]
    eager.run([(Row(state.id, 0, 2), state) for state in states])
    rows = [(Row(state.id, 2, 1, samples=True), state) for state in states]
    plain = eager.run(rows).logits.clone()
    inputs = eager.packer.pack([*rows, *spare_rows(range(6, 6 + num_spare_blocks(BLOCK_SIZE)))[:5]], width=20)
    padded = eager.network.forward(eager.batch(inputs, None))
    assert torch.allclose(padded[:3], plain, atol=1e-5)
    assert len(set(inputs.ragged.kv_slots.tolist())) == 8


@pytest.mark.parametrize("most", [1, 3, 8, 64, 100])
def test_every_number_of_rows_has_a_size_with_few_rows_to_spare(most):
    sizes = sizes_up_to(most)
    assert sizes[-1] == most
    assert all(min(size for size in sizes if size >= rows) - rows < 8 for rows in range(1, most + 1))


needs_native = pytest.mark.skipif("native" not in linear.providers(), reason=dispatch.explain(linear))
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_recorded_steps_give_the_tokens_of_eager_ones(folder, device):
    def tokens(**flags: object) -> list[list[int]]:
        engine = Engine(make_config(folder, device=device, **flags))
        prompts = [[5 + at, 6, 7] for at in range(5)]
        return [told.token_ids for told in run(engine, requests(prompts))]

    def requests(prompts: list[list[int]]) -> list[Request]:
        return ask(prompts, [greedy(8 + at) for at in range(len(prompts))])

    assert tokens() == tokens(enforce_eager=True)


def test_steps_that_cannot_be_recorded_are_run_kernel_by_kernel(folder):
    class Refusing:
        """A recorder of a machine without native kernels."""

        def frame(self, rows: object) -> Frame:
            return Frame(1, 1, 1)

        def record(self, run: object) -> Recording:
            raise Unsupported("nothing is recorded here")

    eager = make_pass(folder, 6 + num_spare_blocks(BLOCK_SIZE))
    spare = range(6, 6 + num_spare_blocks(BLOCK_SIZE))
    graphed = Graphed(eager, Refusing(), max_model_len=24, spare_blocks=spare, block_size=BLOCK_SIZE)
    state = RowState(NewRow("a", [7, 8, 9], 3, SamplingParams(), 0, 0, (0,)))
    eager.run([(Row("a", 0, 2), state)])
    rows = [(Row("a", 2, 1, samples=True), state)]
    assert torch.equal(graphed.run(rows).logits, eager.run(rows).logits)


@needs_native
@torch.inference_mode()
def test_chunks_of_a_prompt_are_recorded_when_their_like_comes_again(folder):
    eager, tapes = make_pass(folder, 6 + num_spare_blocks(BLOCK_SIZE)), Tapes()
    spare = range(6, 6 + num_spare_blocks(BLOCK_SIZE))
    graphed = Graphed(eager, tapes, max_model_len=24, spare_blocks=spare, block_size=BLOCK_SIZE)

    def chunk(first: int) -> list[tuple[Row, RowState]]:
        """Six tokens of a prompt and one of an answer."""
        rows = [
            (Row("long", 2, 6), NewRow("long", [first + at for at in range(9)], 9, SamplingParams(), 0, 0, (0, 1, 2))),
            (Row("short", 2, 1, samples=True), NewRow("short", [first, 8, 9], 3, SamplingParams(), 0, 0, (3,))),
        ]
        return [(row, RowState(new)) for row, new in rows]

    assert [tapes.frame(chunk(5)), tapes.frame(chunk(6))] == [None, Frame(7, 2, 1)]
    for first in (7, 20, 33):
        logits = graphed.run(chunk(first)).logits.clone()
        assert torch.equal(logits, eager.run(chunk(first)).logits)


def test_steps_whose_prompts_are_scored_are_not_recorded(folder):
    state = RowState(NewRow("a", [7, 8, 9], 3, SamplingParams(prompt_logprobs=1), 0, 0, (0,)))
    tapes, rows = Tapes(), [(Row("a", 0, 3, samples=True), state)]
    assert [tapes.frame(rows), tapes.frame(rows)] == [None, None]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_long_prompts_give_the_same_tokens_when_their_steps_are_recorded(folder, device):
    def tokens(**flags: object) -> list[list[list[int]]]:
        engine = Engine(make_config(folder, device=device, max_num_batched_tokens=8, max_num_seqs=4, **flags))
        turns = [[[5 + turn + at, 6, 7, turn, 9] * 4 for at in range(3)] for turn in range(4)]
        return [
            [told.token_ids for told in run(engine, ask(prompts, [greedy(6) for _ in prompts]))] for prompts in turns
        ]

    assert tokens() == tokens(enforce_eager=True)


def test_recorded_chunks_follow_the_adapters_of_their_step(folder, tmp_path):
    refs = [AdapterRef(name, 1, f"digest of {name}") for name in "ab"]
    folders = {ref: make_adapter(tmp_path / ref.name, folder, seed=at) for at, ref in enumerate(refs)}
    prompts = [[5 + at, 6, 7, 9] * 5 for at in range(3)]

    def tokens(turn: int, engine: Engine) -> list[list[int]]:
        requests = ask(prompts, greedy(6))
        for at, request in enumerate(requests):
            request.adapter = (*refs, None)[(at + turn) % 3]
        return [told.token_ids for told in run(engine, requests)]

    def turns(**flags: object) -> list[list[list[int]]]:
        few = {"max_num_batched_tokens": 8, "max_num_seqs": 4, "enable_prefix_caching": False}
        engine = make_engine(folder, folders, **few, **flags)
        return [tokens(turn, engine) for turn in range(6)]

    recorded = turns()
    assert recorded == turns(enforce_eager=True)
    assert recorded[0] != recorded[1]
