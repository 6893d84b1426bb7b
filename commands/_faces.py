"""The other half of the composition root: the engine, the registry and both HTTP faces become one running server."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from dataclasses import dataclass

from ..admin_api.app import Admin, build
from ..core.callers import LOCAL
from ..engine.aio import AsyncEngine
from ..engine.engine import Engine
from ..lora.store import AdapterStore
from ..server.access_log import AccessLog
from ..server.app import create_app
from ..server.auth import OneKey
from ..server.config import ServerConfig
from ..server.flights import Bounds, Flights
from ..server.formats import Formats
from ..server.inside import Inside
from ..server.records import Writer
from ._examples import register_examples
from ._house import HouseOptions, url_of
from ._lora_flags import register_modules
from ._server import HttpServer


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
    listener: socket.socket,
    announce: Callable[[House, list[str]], None],
) -> None:
    """Serve until SIGINT or SIGTERM."""
    client = AsyncEngine(engine)
    admin = build(options.settings, client, store, engine.targets)
    asyncio.run(_live(House(url_of(options.host, listener), client, admin), options, listener, announce))


async def _live(
    house: House, options: HouseOptions, listener: socket.socket, announce: Callable[[House, list[str]], None]
) -> None:
    try:
        await house.admin.start()
        if options.with_examples:
            await register_examples(house.admin.service, options.settings.state_dir)
        admin = house.admin
        await register_modules(house.admin.service, options.lora_modules)
        flights = Flights(_bounds(options))
        app = create_app(
            house.engine,
            admin.catalog,
            keys=admin.keyring,
            meter=admin.books,
            kept=admin.responses,
            scrapers=OneKey(options.metrics_key, "/metrics") if options.metrics_key else None,
            flights=flights,
            writers=_writers(options.server),
            keeps_text=options.server.log_prompts,
            trusts_templates=options.server.trust_request_chat_template,
            formats=Formats.of(house.engine.text, options.server.tool_call_parser, options.server.reasoning_parser),
            routers=[admin.router],
        )
        await admin.batches.start(Inside(app))
        server = HttpServer(app, flights, options.server)
        gc.freeze()  # what has been loaded stays: collections while serving need not walk it
        gc.enable()
        names = [entry.name for entry in await house.admin.catalog.list(LOCAL)]

        def on_ready() -> None:
            announce(house, names)
            house.engine.prepare()

        await server.live(listener, on_ready)
    finally:
        await house.admin.close()
        await house.engine.close()


def _bounds(options: HouseOptions) -> Bounds:
    manners = options.server
    return Bounds(
        choices=options.engine.max_num_seqs + manners.max_queued_requests,
        tokens=manners.max_queued_tokens,
        seconds=manners.request_timeout,
    )


def _writers(config: ServerConfig) -> list[Writer]:
    """Who is told what each request came to."""
    return [] if config.access_log == "off" else [AccessLog(config.access_log)]
