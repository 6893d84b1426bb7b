"""What is no Exception, as panics of libraries in Rust: the request that brings it fails, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aril.core.errors import ArilError, EngineDead
from builders.engines import Told, greedy
from builders.models import make_model
from builders.streams import read, served


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


class Panic(BaseException):
    """No Exception."""


class BadToken(int):
    """Looked at when a request is taken in."""

    def __ge__(self, other: object) -> bool:
        raise Panic


class BadBias(dict[int, float]):
    """Looked at in every step."""

    def __bool__(self) -> bool:
        raise Panic


def test_a_request_that_panics_when_it_comes_fails_alone(folder: Path) -> None:
    async def go() -> Told:
        async with served(folder) as engine:
            beside = asyncio.create_task(read(engine, "beside", greedy(40)))
            with pytest.raises(ArilError, match="Panic"):
                await anext(engine.generate("bad", [BadToken(5)], greedy()))
            return await beside

    assert len(asyncio.run(go()).token_ids) == 40


def test_all_who_wait_are_told_of_an_end_that_is_no_exception(folder: Path) -> None:
    async def go() -> tuple[list[object], bool]:
        async with served(folder) as engine:
            waiting = [asyncio.create_task(read(engine, str(at), greedy(400))) for at in range(3)]
            waiting.append(asyncio.create_task(read(engine, "bad", greedy(4, logit_bias=BadBias()))))
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            with pytest.raises(EngineDead):
                await read(engine, "late", greedy())
            return [type(end) for end in ends], engine.status().alive

    assert asyncio.run(go()) == ([EngineDead] * 4, False)
