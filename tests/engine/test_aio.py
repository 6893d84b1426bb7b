"""The engine behind an event loop: streams merge, hang-ups free, leaving adapters wait for their last user."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import cast

import pytest
from aril.core.errors import EngineDead, InvalidAdapter, InvalidRequest, Unavailable
from aril.engine.aio import AsyncEngine
from aril.engine.mailbox import Mailbox
from aril.engine.params import SamplingParams
from aril.engine.request import Chunk
from aril.lora.adapter import AdapterRef
from aril.lora.store import content_digest
from builders.adapters import make_adapter
from builders.engines import Told, ask, greedy, make_engine, run
from builders.hostile_grammars import HOSTILE
from builders.models import make_model
from builders.streams import PROMPT, read, served


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pirate(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[AdapterRef, Path]:
    home = make_adapter(tmp_path_factory.mktemp("adapter") / "pirate", folder)
    return AdapterRef("pirate", 1, content_digest(home)), home


async def until_idle(engine: AsyncEngine) -> None:
    while engine.status().running or engine.status().waiting:
        await asyncio.sleep(0)


def test_streams_of_many_clients_are_what_a_plain_engine_says(folder):
    params = [greedy(5 + at, min_tokens=at) for at in range(20)]
    expected = run(make_engine(folder), ask([PROMPT] * 20, params))

    async def all_at_once() -> list[Told]:
        async with served(folder) as engine:
            return await asyncio.gather(*(read(engine, str(at), one) for at, one in enumerate(params)))

    told = asyncio.run(all_at_once())
    assert [(one.token_ids, one.text) for one in told] == [(one.token_ids, one.text) for one in expected]


def test_a_slow_reader_gets_fewer_chunks_and_no_less_text(folder):
    async def slow() -> tuple[int, Told, Told]:
        async with served(folder) as engine:
            whole = await read(engine, "quick", greedy(40, logprobs=1))
            told, count = Told(), 0
            async for chunk in engine.generate("slow", PROMPT, greedy(40, logprobs=1)):
                await until_idle(engine)
                told.take(chunk)
                count += 1
            return count, told, whole

    count, told, whole = asyncio.run(slow())
    assert count <= 3
    assert (told.token_ids, told.text, told.logprobs) == (whole.token_ids, whole.text, whole.logprobs)


def test_chunks_of_different_choices_are_never_merged():
    async def both() -> list[Chunk]:
        mailbox = Mailbox(2)
        for index, token, reason in ((0, 1, None), (1, 2, None), (0, 3, "stop")):
            mailbox.put(Chunk("a", index, [token], text=str(token), finish_reason=reason))
        return await mailbox.take()

    first, second = asyncio.run(both())
    assert (first.token_ids, first.text, first.finish_reason) == ([1, 3], "13", "stop")
    assert (second.token_ids, second.finish_reason) == ([2], None)


def test_a_client_that_goes_away_frees_its_blocks(folder):
    async def hang_up() -> tuple[int, int, int]:
        async with served(folder) as engine:
            free = engine.status().free_blocks
            async with aclosing(cast(AsyncGenerator[Chunk, None], engine.generate("a", PROMPT, greedy(400)))) as chunks:
                await anext(chunks)
                held = engine.status().free_blocks
            await until_idle(engine)
            return free, held, engine.status().free_blocks

    free, held, after = asyncio.run(hang_up())
    assert held < free == after


def test_an_abort_ends_the_stream(folder):
    async def abort() -> str | None:
        async with served(folder) as engine:
            reason = None
            async for chunk in engine.generate("a", PROMPT, greedy(400)):
                await engine.abort("a")
                reason = chunk.finish_reason
            return reason

    assert asyncio.run(abort()) == "abort"


def test_a_request_that_can_never_run_raises_before_the_first_chunk(folder):
    async def ask_too_much() -> None:
        async with served(folder) as engine:
            await read(engine, "a", greedy(), AdapterRef("nobody", 1, "0" * 64))

    with pytest.raises(InvalidRequest, match="'nobody' is not loaded"):
        asyncio.run(ask_too_much())


def test_an_adapter_answers_after_it_was_loaded(folder, pirate):
    ref, home = pirate
    expected = run(make_engine(folder, {ref: home}), ask([PROMPT], greedy(), adapter=ref))[0]

    async def load() -> Told:
        async with served(folder, {ref: home}) as engine:
            await engine.load_adapter(ref)
            return await read(engine, "a", greedy(), ref)

    assert asyncio.run(load()).token_ids == expected.token_ids


def test_unloading_waits_for_the_last_user_and_refuses_new_ones(folder, pirate):
    ref, home = pirate

    async def unload() -> list[object]:
        async with served(folder, {ref: home}) as engine:
            await engine.load_adapter(ref)
            user = cast(AsyncGenerator[Chunk, None], engine.generate("a", PROMPT, greedy(300), adapter=ref))
            await anext(user)
            leaving = asyncio.create_task(engine.unload_adapter(ref))
            await engine.abort("nobody")  # by the time this returns the engine has heard of the unloading
            with pytest.raises(InvalidRequest, match="being unloaded"):
                await read(engine, "b", greedy(), ref)
            seen: list[object] = [leaving.done(), engine.status().adapter_slots_used, engine.status().loaded_adapters]
            await user.aclose()
            await leaving
            return [*seen, engine.status().adapter_slots_used]

    assert asyncio.run(unload()) == [False, 1, (), 0]


def test_an_adapter_that_was_never_loaded_unloads_at_once(folder, pirate):
    async def unload() -> None:
        async with served(folder) as engine:
            await engine.unload_adapter(pirate[0])

    asyncio.run(unload())


def test_a_pinned_adapter_takes_its_slot_before_the_first_request(folder, pirate):
    async def pin() -> int:
        async with served(folder, dict([pirate])) as engine:
            await engine.load_adapter(pirate[0], pinned=True)
            while not engine.status().adapter_slots_used:
                await read(engine, "base", greedy(20))
            return engine.status().adapter_slots_used

    assert asyncio.run(pin()) == 1


def test_an_adapter_that_does_not_fit_fails_its_own_requests(folder, tmp_path):
    other = make_model(tmp_path / "other", hidden_size=96)
    home = make_adapter(tmp_path / "adapter", other)
    ref = AdapterRef("stranger", 1, content_digest(home))

    async def ask() -> Chunk:
        async with served(folder, {ref: home}) as engine:
            await engine.load_adapter(ref)
            params = SamplingParams(max_tokens=4)
            return [chunk async for chunk in engine.generate("r", [3, 4], params, adapter=ref)][-1]

    assert isinstance(asyncio.run(ask()).error, InvalidAdapter)


def test_closing_ends_what_runs_and_refuses_what_comes(folder):
    async def close() -> list[type[Exception]]:
        seen: list[type[Exception]] = []
        async with served(folder) as engine:
            chunks = engine.generate("a", PROMPT, greedy(400))
            await anext(chunks)
            await engine.close()
            for stream in (chunks, engine.generate("b", PROMPT, greedy())):
                try:
                    async for _ in stream:
                        pass
                except EngineDead as error:
                    seen.append(type(error))
            assert not engine.status().alive
        return seen

    assert asyncio.run(close()) == [EngineDead, EngineDead]


def test_an_id_may_be_used_again_as_soon_as_its_reader_has_hung_up(folder):
    async def again() -> list[int]:
        async with served(folder) as engine:
            for _ in range(20):
                first = cast(AsyncGenerator[Chunk, None], engine.generate("a", PROMPT, greedy(400)))
                await anext(first)
                await first.aclose()
            return (await read(engine, "a", greedy(4))).token_ids

    assert len(asyncio.run(again())) == 4


def held(**outputs: object) -> SamplingParams:
    return SamplingParams(seed=0, max_tokens=20, structured_outputs=outputs)  # type: ignore[arg-type]


SLOW = HOSTILE["40 patterns at once"]  # takes all the time that it gets


def test_tokens_flow_while_a_constraint_is_compiled(folder: Path) -> None:
    async def go() -> None:
        async with served(folder) as engine:
            await read(engine, "warm", held(choice=["a"]))
            slow = asyncio.create_task(read(engine, "slow", held(**SLOW)))
            told = await read(engine, "free", greedy(64))
            assert (len(told.token_ids), slow.done()) == (64, False)
            with pytest.raises(InvalidRequest, match="takes too long"):
                await slow

    asyncio.run(go())


def test_who_leaves_while_a_constraint_is_compiled_harms_nobody(folder: Path) -> None:
    async def go() -> None:
        async with served(folder) as engine:
            await read(engine, "warm", held(choice=["a"]))
            leaving, staying = (asyncio.create_task(read(engine, name, held(**SLOW))) for name in ("leaves", "stays"))
            await asyncio.sleep(0)
            leaving.cancel()
            with pytest.raises(InvalidRequest, match="takes too long"):
                await staying
            assert (await read(engine, "next", held(choice=["b"]))).text == "b"

    asyncio.run(go())


def test_an_engine_may_be_closed_while_a_constraint_is_compiled(folder: Path) -> None:
    async def go() -> None:
        async with served(folder) as engine:
            await read(engine, "warm", held(choice=["a"]))
            slow = asyncio.create_task(read(engine, "slow", held(**SLOW)))
            await asyncio.sleep(0)
        with pytest.raises((InvalidRequest, EngineDead, Unavailable)):
            await slow

    asyncio.run(go())
