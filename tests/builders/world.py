"""A device without numbers: the KV of a token is a fingerprint of all it depends on, so a wrong block cannot go unseen.

`Device` does what a runner does with a step and checks, at every token, that the cells before it hold what they should
and that nobody else reads the block it writes. `Slots` is a small adapter memory. `answer` says what must come out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

from aril.core.errors import InvalidAdapter
from aril.engine.config import EngineConfig
from aril.engine.detokenizer import Detokenizer
from aril.engine.params import SamplingParams
from aril.engine.request import Chunk, Request, TokenLogprobs
from aril.engine.scheduler import Scheduler
from aril.engine.step import NewRow, Row, Sampled, Step, StepResult
from aril.lora.adapter import AdapterRef

from .beams import EOS, PIECES, likeliest, searched

VOCAB = 40
BASE = AdapterRef("base", 0, "")


def adapter(name: str, digest: str | None = None) -> AdapterRef:
    """An adapter whose bytes are `digest`, by default its own."""
    return AdapterRef(name, 1, digest or f"bytes of {name}")


def fingerprints(digest: str, tokens: list[int]) -> list[int]:
    """What the KV of each token depends on."""
    prints, last = [], crc32(digest.encode())
    for token in tokens:
        last = hash((last, token))
        prints.append(last)
    return prints


def draw(fingerprint: int, index: int) -> int:
    """The next token after a position, for one of the n choices."""
    return hash((fingerprint, index)) % VOCAB


def answer(request: Request, max_len: int) -> list[int]:
    """The tokens that `request` must get, whatever shares its steps."""
    params, output = request.params, list[int]()
    last = fingerprints((request.adapter or BASE).digest, request.prompt)[-1]
    if params.use_beam_search:
        return searched(request, max_len, last, lambda fingerprint: likeliest(fingerprint, VOCAB))[request.index]
    while len(output) != params.max_tokens and len(request.prompt) + len(output) < max_len:
        output.append(draw(last, request.index))
        last = hash((last, output[-1]))
        ends = output[-1] in params.stop_token_ids or (output[-1] == EOS and not params.ignore_eos)
        if ends and len(output) >= params.min_tokens:
            break
    return output


@dataclass
class Known:
    """A request as the device knows it."""

    digest: str
    blocks: list[int]
    tokens: list[int]
    index: int
    num_prompt: int
    params: SamplingParams


class Slots:
    """Adapter memory of a few slots. `late` adapters come near only when `arrive` is called; `bad` ones cannot load."""

    def __init__(self, count: int = 4) -> None:
        self.users: dict[str, int] = {}
        self.slots: dict[str, int] = {}
        self.count = count
        self.late: set[str] = set()
        self.bad: set[str] = set()
        self._loads: list[tuple[int, AdapterRef]] = []

    def prefetch(self, ref: AdapterRef) -> None:
        """Nothing comes by itself."""

    def arrive(self, ref: AdapterRef) -> None:
        """A late adapter is near now."""
        self.late.discard(ref.digest)

    def acquire(self, ref: AdapterRef) -> int | None:
        """A slot, taken from an adapter without users if need be."""
        if ref.digest in self.bad:
            raise InvalidAdapter(f"adapter {ref.name}: its bytes are bad")
        if ref.digest in self.late:
            return None
        if ref.digest not in self.slots and not self._find_slot(ref):
            return None
        self.users[ref.digest] = self.users.get(ref.digest, 0) + 1
        return self.slots[ref.digest]

    def release(self, ref: AdapterRef) -> None:
        """One user less."""
        self.users[ref.digest] -= 1
        assert self.users[ref.digest] >= 0, "released once too often"

    def take_loads(self) -> list[tuple[int, AdapterRef]]:
        """Loads since the last time."""
        loads, self._loads = self._loads, []
        return loads

    def _find_slot(self, ref: AdapterRef) -> bool:
        free = set(range(1, self.count + 1)) - set(self.slots.values())
        unused = [digest for digest in self.slots if not self.users[digest]]
        if not free and unused:
            free = {self.slots.pop(unused[0])}
        if free:
            self.slots[ref.digest] = min(free)
            self._loads.append((self.slots[ref.digest], ref))
        return bool(free)


@dataclass
class Device:
    """Runs steps on fingerprints and checks every read and write."""

    config: EngineConfig
    cells: dict[tuple[int, int], int] = field(default_factory=dict)
    loaded: dict[int, str] = field(default_factory=lambda: {0: ""})
    known: dict[str, Known] = field(default_factory=dict)
    failing: dict[str, Exception] = field(default_factory=dict)  # rows that bring back an error, by request id

    def run(self, step: Step) -> StepResult:
        """The answer of one pass."""
        for id in step.gone:
            del self.known[id]
        self.loaded.update((slot, ref.digest) for slot, ref in step.loads)
        for new in step.new:
            self._meet(new)
        for row in step.rows:
            self.known[row.id].blocks.extend(row.new_blocks)
        for id, (at, block) in step.moved.items():
            self.known[id].blocks[at] = block
        self._check_limits(step)
        self._copy(step.copies)
        return {row.id: self._compute(row) for row in step.rows}

    def _meet(self, new: NewRow) -> None:
        assert new.id not in self.known, f"{new.id} is met twice"
        digest, blocks, tokens = self.loaded[new.slot], list(new.blocks), list(new.token_ids)
        self.known[new.id] = Known(digest, blocks, tokens, new.index, new.num_prompt, new.params)

    def _check_limits(self, step: Step) -> None:
        assert sum(row.length for row in step.rows) <= self.config.max_num_batched_tokens
        assert len(step.rows) <= self.config.max_num_seqs
        assert len({row.id for row in step.rows}) == len(step.rows)

    def _copy(self, copies: list[tuple[int, int]]) -> None:
        sources, targets = {old for old, _ in copies}, [new for _, new in copies]
        assert len(set(targets)) == len(targets)
        assert not sources & set(targets)
        for old, new in copies:
            for offset in range(self.config.block_size):
                if (old, offset) in self.cells:
                    self.cells[new, offset] = self.cells[old, offset]

    def _compute(self, row: Row) -> Sampled:
        if row.id in self.failing:
            return Sampled([], error=self.failing[row.id])
        known = self.known[row.id]
        end = row.start + row.length
        prints = fingerprints(known.digest, known.tokens[:end])
        for at in range(row.start):
            assert self.cells[self._cell(known, at)] == prints[at], f"{row.id} reads wrong KV at {at}"
        for at in range(row.start, end):
            block, offset = self._cell(known, at)
            readers = [id for id, other in self.known.items() if block in other.blocks]
            assert readers == [row.id], f"{row.id} writes into block {block} of {readers}"
            self.cells[block, offset] = prints[at]
        assert row.samples == (end == len(known.tokens))
        if not row.samples:
            return Sampled([], prompt_logprobs=self._prompt_logprobs(known, row))
        if known.params.use_beam_search:
            told = likeliest(prints[-1], VOCAB)
            known.tokens.append(told.token_id)
            return Sampled([told.token_id], [told])
        known.tokens.append(draw(prints[-1], known.index))
        return Sampled([known.tokens[-1]], prompt_logprobs=self._prompt_logprobs(known, row))

    def _cell(self, known: Known, at: int) -> tuple[int, int]:
        return known.blocks[at // self.config.block_size], at % self.config.block_size

    def _prompt_logprobs(self, known: Known, row: Row) -> list[TokenLogprobs | None] | None:
        if known.params.prompt_logprobs is None:
            return None
        inside = known.tokens[row.start : min(row.start + row.length, known.num_prompt)]
        return [TokenLogprobs(token, -1.0, 1, {}) for token in inside]


class World:
    """A scheduler with its device and slots, and all that clients have heard."""

    def __init__(self, *, num_blocks: int = 64, max_model_len: int = 128, slots: int = 4, **config: object) -> None:
        values: dict[str, object] = {"block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 16, **config}
        self.config = EngineConfig(model="tiny", **values)  # type: ignore[arg-type]
        self.slots = Slots(slots)
        self.device = Device(self.config)
        self.max_len = min(max_model_len, num_blocks * self.config.block_size)
        self.scheduler = Scheduler(
            self.config,
            self.slots,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            eos_token_ids={EOS},
            spell=lambda params, prompt: Detokenizer(PIECES, params, prompt),
        )
        self.heard: dict[tuple[str, int], list[Chunk]] = {}
        self.steps: list[Step] = []
        self.answers: dict[str, list[list[int]]] = {}  # what a test expects, by request

    def add(
        self,
        id: str,
        prompt: list[int],
        ref: AdapterRef | None = None,
        *,
        priority: int = 0,
        salt: str = "",
        **params: object,
    ) -> Request:
        """One more request; returns it."""
        request = Request(id, prompt, SamplingParams(**params), ref, priority, salt)  # type: ignore[arg-type]
        self.scheduler.add(request)
        return request

    def step(self) -> Step:
        """One pass from schedule to news."""
        step = self.scheduler.schedule()
        self.steps.append(step)
        self.hear(self.scheduler.update(step, self.device.run(step)))
        return step

    def hear(self, news: list[Chunk]) -> None:
        """What clients are told."""
        for chunk in news:
            self.heard.setdefault((chunk.request_id, chunk.index), []).append(chunk)

    def run(self, max_steps: int = 2000) -> None:
        """Steps until all is done; a world that never ends fails."""
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError(f"not done after {max_steps} steps")

    def output(self, id: str, index: int = 0) -> list[int]:
        """All tokens that a client heard."""
        return [token for chunk in self.heard.get((id, index), ()) for token in chunk.token_ids]

    def last(self, id: str, index: int = 0) -> Chunk:
        """The last news of a choice."""
        return self.heard[id, index][-1]

    def computed(self, id: str) -> int:
        """Tokens computed for one request so far, those computed again included."""
        return sum(row.length for step in self.steps for row in step.rows if row.id == id)


def ids(step: Step) -> list[str]:
    """Who has a row in a step."""
    return [row.id for row in step.rows]
