"""The other half of the composition root: the engine, the registry and both HTTP faces become one running server."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from ..admin_api.app import Admin, build
from ..core.callers import LOCAL
from ..engine.aio import AsyncEngine
from ..engine.engine import Engine
from ..lora.store import AdapterStore
from ..server.app import create_app
from ..server.auth import OneKey
from ..server.flights import Bounds, Flights
from ..server.formats import Formats
from ..server.inside import Inside
from ..server.manners import Manners
from ._crewed import live_with_crew
from ._examples import register_examples
from ._house import HouseOptions
from ._listener import Door
from ._lora_flags import register_modules
from ._server import HttpServer, manners_of

# Answers are thousands of objects that die soon: with Python's own 700 a long one is walked ten times while it is made.
GC_THRESHOLD = (20_000, 10, 10)


@dataclass(frozen=True, slots=True)
class House:
    """A server that is about to answer."""

    url: str
    engine: AsyncEngine
    admin: Admin


def show(
    engine: Engine,
    store: AdapterStore,
    options: HouseOptions,
    door: Door,
    announce: Callable[[House, list[str]], None],
) -> None:
    """Serve until SIGINT or SIGTERM."""
    client = AsyncEngine(engine)
    admin = build(options.settings, client, store, engine.targets)
    asyncio.run(_live(House(door.url, client, admin), options, door, announce))


async def _live(house: House, options: HouseOptions, door: Door, announce: Callable[[House, list[str]], None]) -> None:
    manners = _manners(options)
    ending = AsyncExitStack()
    try:
        await house.admin.start()
        if options.with_examples:
            await register_examples(house.admin.service, options.settings.state_dir)
        admin = house.admin
        await register_modules(house.admin.service, options.lora_modules)
        app = create_app(
            house.engine,
            admin.catalog,
            keys=admin.keyring,
            meter=admin.books,
            kept=admin.responses,
            scrapers=OneKey(options.metrics_key, "/metrics") if options.metrics_key else None,
            manners=manners,
            trusts_templates=options.server.trust_request_chat_template,
            formats=Formats.of(house.engine.text, options.server.tool_call_parser, options.server.reasoning_parser),
            routers=admin.routers,
        )
        shelf = app.state.face.responses
        ending.push_async_callback(shelf.close)  # after a second signal nobody else does
        await admin.batches.start(Inside(app))
        gc.freeze()  # what has been loaded stays: collections while serving need not walk it
        gc.set_threshold(*GC_THRESHOLD)
        gc.enable()
        names = [entry.name for entry in await house.admin.catalog.list(LOCAL)]

        def on_ready() -> None:
            announce(house, names)
            house.engine.prepare()

        if options.server.api_server_count == 1:
            server = HttpServer(app, manners.flights, options.server, door.tls, shelf.running)
            await server.live(door.listener, on_ready)
        else:
            await live_with_crew(app, app.state.face, options.server, door.listener, on_ready)
    finally:
        await ending.aclose()
        await house.admin.close()
        await house.engine.close()
        for writer in manners.writers:
            await asyncio.to_thread(writer.close)


def _manners(options: HouseOptions) -> Manners:
    config = options.server
    bounds = Bounds(
        choices=options.engine.max_num_seqs + config.max_queued_requests,
        tokens=config.max_queued_tokens,
        seconds=config.request_timeout,
    )
    return manners_of(config, Flights(bounds))
