"""The end of a server with several processes, and what its own faults are taken for."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest
from aril.admin_api.catalog import AdapterCatalog
from aril.admin_api.residency import Residency
from aril.commands._crewed import live_with_crew
from aril.commands._listener import listening
from aril.engine.aio import AsyncEngine
from aril.server.app import create_app
from aril.server.config import ServerConfig
from aril.server.responses.event_log import Log
from builders.commands import SMALL, Files
from builders.engines import make_engine
from builders.processes import launched

DRAIN = 6.0  # seconds
SOON = 60.0  # on a machine that is busy with other things
HALF_ASKED = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"


async def forever() -> None:
    await asyncio.Event().wait()


async def end_of_what_never_ends(engine: AsyncEngine) -> float:
    """The seconds that it takes to end a server where a request and a response in the background go on and on."""
    app, ready = create_app(engine, AdapterCatalog("tiny", Residency(engine))), asyncio.Event()
    with listening("127.0.0.1", 0) as listener:
        config = ServerConfig(drain_timeout=DRAIN)
        living = asyncio.create_task(live_with_crew(app, app.state.face, config, listener, ready.set))
        await ready.wait()
        app.state.face.responses.start("endless", forever(), Log())
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(HALF_ASKED)
        await reader.readuntil(b" 100 Continue\r\n")
        began = asyncio.get_running_loop().time()
        os.kill(os.getpid(), signal.SIGTERM)
        await living
        writer.close()
        return asyncio.get_running_loop().time() - began


def test_the_end_has_one_deadline_for_all(files: Files) -> None:
    engine = AsyncEngine(make_engine(files.model, served_model_name="tiny"))
    took = asyncio.run(end_of_what_never_ends(engine))
    asyncio.run(engine.close())
    assert DRAIN <= took < 1.8 * DRAIN


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_server_that_cannot_say_that_it_is_ready_ends_and_no_process_is_blamed(
    files: Files, tmp_path: Path, count: str
) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    process = launched(files.model, tmp_path / "state", [*SMALL, "--api-server-count", count], stdout=writes)
    os.close(writes)
    try:
        assert process.wait(SOON) == 1
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert "worker_died" not in (tmp_path / "state" / "log").read_text()
