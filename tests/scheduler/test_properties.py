"""Whatever arrives and ends, in whatever order: everybody gets the right tokens and nothing is left held."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
from aril.engine.request import BACKGROUND, Request
from builders.world import VOCAB, World, adapter, answer
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

ADAPTERS = [None, *(adapter(name) for name in "abcd"), replace(adapter("a"), name="alias of a")]
STEMS = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [1, 2, 3, 4, 9, 9, 9, 9], []]

prompts = st.builds(
    lambda stem, cut, tail: (stem[:cut] + tail) or [1],
    st.sampled_from(STEMS),
    st.integers(0, 12),
    st.lists(st.integers(1, VOCAB - 1), max_size=14),
)


class Anything(RuleBasedStateMachine):
    """Arrivals, aborts, stop strings, failures and late adapters between steps of a tiny world."""

    requests = Bundle("requests")

    @initialize(
        num_blocks=st.integers(7, 24),
        rows=st.integers(1, 5),
        tokens=st.integers(5, 24),
        slots=st.integers(1, 3),
        caching=st.booleans(),
    )
    def build(self, num_blocks: int, rows: int, tokens: int, slots: int, caching: bool) -> None:
        self.world = World(
            num_blocks=num_blocks,
            max_model_len=64,
            slots=slots,
            max_num_seqs=rows,
            max_num_batched_tokens=tokens,
            enable_prefix_caching=caching,
        )
        self.added: list[Request] = []
        self.cut: set[str] = set()  # those that may end early

    @rule(
        target=requests,
        prompt=prompts,
        ref=st.sampled_from(ADAPTERS),
        priority=st.sampled_from([0, 0, 1, BACKGROUND]),
        n=st.sampled_from([1, 1, 1, 2, 4]),
        max_tokens=st.sampled_from([1, 2, 5, 17, None]),
        ignore_eos=st.booleans(),
        prompt_logprobs=st.sampled_from([None, None, 1]),
        beams=st.sampled_from([None, None, 3, 6]),
    )
    def arrive(self, prompt: list[int], ref: object, priority: int, beams: int | None, **params: object) -> Request:
        if beams is not None:
            found = {"use_beam_search": True, "temperature": 0.0, "best_of": max(beams, params["n"])}  # type: ignore[type-var]
            params |= {**found, "prompt_logprobs": None}
        request = self.world.add(f"r{len(self.added)}", prompt, ref, priority=priority, **params)
        self.added.append(request)
        return request

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.world.step()

    @rule(request=consumes(requests))
    def abort(self, request: Request) -> None:
        self.world.scheduler.abort(request.id)
        self.cut.add(request.id)

    @rule(request=requests)
    def abort_during_a_pass(self, request: Request) -> None:
        step = self.world.scheduler.schedule()
        result = self.world.device.run(step)
        self.world.scheduler.abort(request.id)
        self.cut.add(request.id)
        self.world.hear(self.world.scheduler.update(step, result))

    @rule(request=requests, index=st.integers(0, 3))
    def find_a_stop_string(self, request: Request, index: int) -> None:
        if request.params.use_beam_search:
            return  # nobody has heard anything of it, before it ends
        self.world.scheduler.finish(request.id, "stop", stop_reason="x", index=index)
        self.cut.add(request.id)

    @rule(request=requests)
    def fail(self, request: Request) -> None:
        self.world.device.failing[request.id] = ValueError("no finite logits")
        self.cut.add(request.id)

    @rule(ref=st.sampled_from(ADAPTERS[1:]))
    def come_late(self, ref: object) -> None:
        self.world.slots.late.add(ref.digest)  # type: ignore[attr-defined]

    @rule()
    def all_adapters_arrive(self) -> None:
        self.world.slots.late.clear()

    @invariant()
    def no_more_is_free_than_there_is(self) -> None:
        if hasattr(self, "world"):
            assert 0 <= self.world.scheduler.pool.num_free <= self.world.scheduler.pool.num_blocks

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.slots.late.clear()
        self.world.run(50_000)  # beams that share one row compute everything again for each token
        assert self.world.scheduler.pool.num_free == self.world.scheduler.pool.num_blocks
        assert not any(self.world.slots.users.values())
        assert not self.world.device.known
        for request in self.added:
            for choice in request.choices()[: request.params.n]:
                self._check(choice)

    def _check(self, choice: Request) -> None:
        heard = self.world.output(choice.client_id, choice.index)
        expected = answer(choice, self.world.max_len)
        if choice.client_id in self.cut:
            assert heard == expected[: len(heard)]
            return
        assert heard == expected
        chunks = self.world.heard[choice.client_id, choice.index]
        assert [chunk.finish_reason is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        wanted = choice.prompt if choice.params.prompt_logprobs is not None and choice.index == 0 else []
        assert [entry.token_id for entry in chunks[0].prompt_logprobs or [] if entry] == wanted


Anything.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnything = Anything.TestCase
