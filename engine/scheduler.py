"""Scheduler: which tokens are computed next, and what the computed ones mean for their requests.

There is no prefill phase and no decode phase: every request has tokens to catch up with. Blocks for all tokens of a
request are held from its start on, so that only a request at its newest token ever needs more. When there are none,
the most junior running request gives its own back and waits again; the most senior one always goes on, which is why
everything ends. Pure Python on ids: knows no tensors, no text and no threads.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import count

from ..core import metrics
from ..lora.adapter import AdapterRef
from .background import Background
from .branches import Branches, Speller
from .config import EngineConfig
from .holdings import Adapters, Holdings
from .kv.blocks import BlockPool
from .kv.cache import UNCHANGED, Growth, KVTables
from .kv.prefix import PrefixIndex
from .lengths import Lengths
from .queue import Queue
from .request import Chunk, Request, Status, TokenLogprobs, Vector
from .roster import Roster, adapters_of
from .step import NewRow, Row, Sampled, Step, StepResult
from .stop import Ending, ending

ABORTED = Ending("abort")
FAILED = Ending("error")
POOLED = Ending("stop")

RUNNING = metrics.gauge("requests_running", "Requests that take part in steps")
WAITING = metrics.gauge("requests_waiting", "Requests that have not started, or were preempted")
BLOCKS = metrics.gauge("kv_blocks", "Blocks of the KV cache")
FREE_BLOCKS = metrics.gauge("kv_blocks_free", "Blocks of the KV cache that no request holds, cached ones included")
OUTPUT_TOKENS = metrics.counter("generation_tokens", "Tokens that were drawn")


class Scheduler:
    """One step after another out of all requests. `add`, `abort` and `finish` may come between any two calls.

    Others may read the counts of `pool`, and leave the rest of it alone.
    """

    def __init__(
        self,
        config: EngineConfig,
        adapters: Adapters,
        *,
        num_blocks: int,
        max_model_len: int,
        eos_token_ids: Set[int] = frozenset(),
        spell: Speller,
    ) -> None:
        """`spell` makes what turns tokens into text; stop strings of beam searches are found with it."""
        self._max_rows = config.max_num_seqs
        self._max_tokens = config.max_num_batched_tokens
        self._lengths = Lengths(max_model_len, num_blocks * config.block_size)
        self._eos = frozenset(eos_token_ids)
        self.pool = BlockPool(num_blocks)
        index = PrefixIndex(self.pool, config.block_size) if config.enable_prefix_caching else None
        self._tables = KVTables(self.pool, index, config.block_size)
        self._adapters = adapters
        self._roster = Roster()
        self._queue = Queue()
        self._holdings = Holdings(self._roster, self._queue, self._tables, adapters)
        self._branches = Branches(self._holdings, spell, eos_token_ids=self._eos, max_model_len=self._lengths.most)
        self._background = Background()
        self._arrivals = count()
        self._news: list[Chunk] = []
        BLOCKS.set(num_blocks)

    @property
    def has_work(self) -> bool:
        """Whether there is a step to make. One without rows says that nothing can run now."""
        return bool(len(self._roster) or self._news or self._holdings.any_gone)

    @property
    def num_running(self) -> int:
        """Requests that take part in steps."""
        return len(self._holdings.running)

    @property
    def num_waiting(self) -> int:
        """Requests that have not started, or were preempted."""
        return len(self._roster) - self.num_running

    @property
    def running_adapters(self) -> tuple[str, ...]:
        """The names that requests which take part in steps use; any thread may ask."""
        return adapters_of(list(self._holdings.running))

    @property
    def waiting_adapters(self) -> tuple[str, ...]:
        """The names that the other requests want; any thread may ask."""
        return adapters_of([request for request in self._roster.all() if request.status is Status.WAITING])

    def num_users(self, ref: AdapterRef) -> int:
        """Requests, running and waiting, on the bytes of `ref`."""
        return self._roster.num_users(ref)

    def add(self, request: Request) -> None:
        """Take in a new request with all of its `n` choices.

        Raises InvalidRequest when it can never run here, and Conflict when its id is in use.
        """
        self._lengths.check(request)
        choices = request.choices()
        self._roster.check_free(choices)
        if request.adapter:
            self._adapters.prefetch(request.adapter)
        for choice in choices:
            choice.arrival = next(self._arrivals)
        self._holdings.enter(choices)
        self._branches.enter(choices)

    def abort(self, request_id: str) -> None:
        """End all choices of a request and free what they hold. One that is not here has ended already."""
        for choice in self._roster.choices(request_id):
            self._holdings.end(choice, ABORTED)
            self._tell(choice, [])
        self._branches.leave(request_id)

    def finish(self, request_id: str, reason: str, *, stop_reason: int | str | None = None, index: int = 0) -> None:
        """End one choice for a reason found outside, such as a stop string; the caller tells the client."""
        for choice in self._roster.choices(request_id):
            if choice.index == index:
                self._holdings.end(choice, Ending(reason, stop_reason))

    def schedule(self) -> Step:
        """The next step. Hand it to `update` with its result, also when it has no rows."""
        step = Step()
        self._tables.settle()
        self._holdings.give_way()
        self._background.begin(self._holdings.running)
        before = self.num_running
        budget = self._add_newest_tokens(step, self._max_tokens)
        preempted = self.num_running < before
        budget = self._add_chunks(step, budget)
        if not preempted:  # else whoever started now would be the next to give its blocks back
            self._start_waiting(step, budget)
        while not step.rows and self._holdings.step_aside():
            self._start_waiting(step, budget)
        step.copies.extend(self._tables.take_copies())
        step.loads.extend(self._adapters.take_loads())
        step.gone.extend(self._holdings.take_gone())
        return step

    def update(self, step: Step, result: StepResult) -> list[Chunk]:
        """Take in what a step computed; returns all news since the last time, also of what was aborted or failed."""
        for row in step.rows:
            request = self._roster.get(row.id)
            if request is not None and request.status is Status.RUNNING:  # else it was aborted during the pass
                self._take_row(request, row, result[row.id])
        RUNNING.set(self.num_running)
        WAITING.set(self.num_waiting)
        FREE_BLOCKS.set(self.pool.num_free)
        news, self._news = self._news, []
        OUTPUT_TOKENS.inc(sum(len(chunk.token_ids) for chunk in news))
        return news

    def _add_newest_tokens(self, step: Step, budget: int) -> int:
        """Rows of the requests that miss one token only, by seniority: nobody waits for the prompt of another."""
        running, at = self._holdings.running, 0
        while at < len(running):  # it gets shorter from its end, where nobody has a row yet
            request = running[at]
            takes_part = request.num_missing == 1 and not self._background.skips(request)
            growth = self._holdings.make_room(request) if takes_part else None
            if growth is not None:
                budget -= self._add_row(step, request, budget, growth)
            at += 1
        return budget

    def _add_chunks(self, step: Step, budget: int) -> int:
        """Rows of the requests that miss more, as far as the budget goes."""
        for request in self._holdings.running:
            if budget == 0:
                break
            if request.num_missing > 1 and not self._background.skips(request):
                budget -= self._add_row(step, request, budget, UNCHANGED)
        return budget

    def _start_waiting(self, step: Step, budget: int) -> None:
        """Rows of requests that start, the most deserving first, as long as there is room for them."""
        running = self._holdings.running
        if budget == 0 or len(running) >= self._max_rows:
            return
        for request in self._queue.offer(adapters_run=any(other.adapter for other in running)):
            if self._background.skips(request) or (request.is_background and self._queue.any_awaited):
                return
            slot = self._slot_of(request)
            if slot is None:
                continue
            if not self._holdings.acquire_blocks(request):
                self._holdings.release_slot(request)
                return  # those behind it would take the room it waits for
            budget -= self._start(step, request, slot, budget)
            if budget == 0 or len(running) >= self._max_rows:
                return

    def _slot_of(self, request: Request) -> int | None:
        """Its adapter's slot; None when it must wait, or has failed."""
        try:
            return self._holdings.acquire_slot(request)
        except Exception as error:  # whatever is wrong with an adapter ends its requests, never the engine
            self._fail(request, error)
            return None

    def _start(self, step: Step, request: Request, slot: int, budget: int) -> int:
        self._holdings.start(request, slot)
        step.new.append(NewRow.of(request, self._tables.blocks(request)))
        return self._add_row(step, request, budget, UNCHANGED)

    def _add_row(self, step: Step, request: Request, budget: int, growth: Growth) -> int:
        """The next tokens of a request, as many as the budget allows; returns how many."""
        missing = request.num_missing
        length = min(missing, self._background.most(request, budget))
        if self._holdings.take_changed(request):
            step.new.append(NewRow.of(request, self._tables.blocks(request)))
            growth = UNCHANGED
        samples = length == missing and request.params.pooling is None
        step.rows.append(Row(request.id, request.num_computed, length, growth.new_blocks, samples))
        if growth.moved:
            step.moved[request.id] = growth.moved
        self._queue.charge(request, length)
        return length

    def _take_row(self, request: Request, row: Row, sampled: Sampled) -> None:
        if sampled.error is not None:
            self._fail(request, sampled.error)
            return
        request.num_computed = row.start + row.length
        self._tables.publish(request)
        if request.scores_prompt:
            request.prompt_logprobs.extend(sampled.prompt_logprobs or ())
            request.prompt_logits.extend(() if sampled.prompt_logits is None else (sampled.prompt_logits,))
        if sampled.token_ids and self._branches.siblings(request):
            for choice, logprobs in self._branches.take(request, sampled):
                self._tell(choice, choice.output, logprobs=logprobs)
        elif sampled.token_ids:
            self._holdings.bear_siblings(request)
            self._take_tokens(request, sampled)
        if sampled.embedding is not None:
            self._holdings.end(request, POOLED)
            self._tell(request, [], embedding=sampled.embedding)

    def _take_tokens(self, request: Request, sampled: Sampled) -> None:
        taken = 0
        for token in sampled.token_ids:
            request.output.append(token)
            taken += 1
            if end := ending(request, eos_token_ids=self._eos, max_model_len=self._lengths.most):
                self._holdings.end(request, end)
                break
        self._tell(request, sampled.token_ids[:taken], logprobs=sampled.logprobs and sampled.logprobs[:taken])

    def _fail(self, request: Request, error: Exception) -> None:
        """It ends alone, with the siblings that still wait for its prompt, or for its next token."""
        for failed in self._branches.siblings(request) or [request, *self._roster.unborn(request)]:
            self._holdings.end(failed, FAILED)
            self._tell(failed, [], error=error)
        self._branches.leave(request.client_id)

    def _tell(
        self,
        request: Request,
        token_ids: list[int],
        *,
        logprobs: list[TokenLogprobs] | None = None,
        embedding: Vector | None = None,
        error: Exception | None = None,
    ) -> None:
        """News for the client; with the first tokens come the log-probabilities of the prompt."""
        if request.index >= request.params.n:
            return  # a beam that nobody hears of
        first = token_ids and len(token_ids) == len(request.output)
        chunk = Chunk(
            request_id=request.client_id,
            index=request.index,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=(request.prompt_logprobs or None) if first else None,
            prompt_logits=(request.prompt_logits or None) if first else None,
            embedding=embedding,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            num_prompt=len(request.prompt),
            num_cached=request.num_cached,
            num_output=len(request.output),
            error=error,
        )
        self._news.append(chunk)
