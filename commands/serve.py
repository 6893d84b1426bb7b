"""`aril serve MODEL`: the server, until Ctrl-C."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.config import parse_bytes
from ._command import Command
from ._elsewhere import OF_ENGINES, OF_SERVERS, refuse_elsewhere
from ._flags import (
    add_engine_flags,
    add_server_flags,
    add_state_dir,
    engine_config,
    key_given,
    server_config,
    state_dir,
)
from ._lora_flags import add_lora_flags, lora_modules

if TYPE_CHECKING:
    from ._faces import House

WEB = ("uvicorn", "fastapi", "sqlalchemy.orm", "sqlalchemy.dialects.sqlite")  # half a second that need no torch
LOG_LEVELS = ("debug", "info", "warning", "error")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The engine's flags, and those of the server."""
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 is all (127.0.0.1)")
    group.add_argument("--port", type=int, default=8000, help="port to listen on; 0 is any free one (8000)")
    group.add_argument(
        "--api-key", action="append", help="key of /v1, may be given several times (or ARIL_API_KEY, with commas)"
    )
    group.add_argument(
        "--admin-key",
        default=os.environ.get("ARIL_ADMIN_KEY") or None,
        help="key of /admin/v1 (or ARIL_ADMIN_KEY; by default one is made and kept in the state folder)",
    )
    group.add_argument(
        "--database-url",
        default=os.environ.get("ARIL_DATABASE_URL"),
        help="SQLite or PostgreSQL (or ARIL_DATABASE_URL; by default SQLite in the state folder)",
    )
    add_state_dir(parser)
    _add_response_flags(parser)
    _add_source_flags(parser)
    group.add_argument(
        "--examples",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with the model demo: bring the example adapters at the first start",
    )
    group.add_argument(
        "--metrics-adapters",
        type=int,
        default=20,
        help="adapters with series of their own in /metrics: the busiest; the rest share one (20)",
    )
    group.add_argument(
        "--metrics-key",
        default=os.environ.get("ARIL_METRICS_KEY") or None,
        help="key of /metrics, which names adapters (or ARIL_METRICS_KEY; by default it asks for none)",
    )
    group.add_argument(
        "--enable-auto-tool-choice", action="store_true", help="for vLLM's command lines: here it is always so"
    )
    group.add_argument("--log-level", choices=LOG_LEVELS, default="info")
    _add_keeping_flags(parser)
    add_server_flags(parser)
    add_engine_flags(parser)
    add_lora_flags(parser)
    refuse_elsewhere(parser, OF_ENGINES, OF_SERVERS)


def _add_response_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("responses", "what /v1/responses has made, for its callers to come back to")
    group.add_argument(
        "--response-days", type=int, default=30, metavar="DAYS", help="days that each is kept; 0 keeps none (30)"
    )
    group.add_argument(
        "--response-bytes", type=parse_bytes, default=256 << 20, metavar="SIZE",
        help="of those kept for one tenant, whose oldest go first (256MiB)",
    )  # fmt: skip


def _add_source_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sources", "where adapters may be fetched from: nowhere, unless allowed here")
    group.add_argument(
        "--adapter-root", action="append", type=Path, default=[], metavar="DIR",
        help="folder under which file:// sources may lie",
    )  # fmt: skip
    group.add_argument(
        "--allow-source", action="append", default=[], metavar="URL",
        help="hf://organisation/*, s3://bucket/prefix, https://host/folder: this and all that is below it",
    )  # fmt: skip
    group.add_argument(
        "--allow-address", action="append", default=[], metavar="ADDRESS",
        help="address or network that https:// sources may be at although it is not public",
    )  # fmt: skip


def _add_keeping_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("registry", "what it keeps, and where")
    group.add_argument(
        "--kept-revisions", type=int, default=5, metavar="N",
        help="of an adapter, revisions older than what its bare name means: more retire, oldest first (5)",
    )  # fmt: skip
    group.add_argument(
        "--max-revisions", type=int, default=100, metavar="N",
        help="of an adapter, revisions that are listed: more push the oldest without bytes out (100)",
    )  # fmt: skip
    group.add_argument(
        "--move-store", action="store_true",
        help="make --store that of the database although it has another, which is gone for good",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Build the house and serve."""
    from ..admin_api.settings import AdminSettings
    from ..core import log
    from ..core.ahead import import_ahead

    gc.disable()  # until it answers: imports make much that stays, and each collection would walk all of it
    import_ahead(*WEB)
    log.configure(args.log_level.upper())
    config, manners = engine_config(args), server_config(args)
    from ..models.source import DEMO
    from ._house import HouseOptions, serve

    settings = AdminSettings(
        state_dir=state_dir(args.state_dir, config.model),
        database_url=args.database_url or None,
        admin_key=key_given("--admin-key", args.admin_key),
        adapter_roots=tuple(args.adapter_root),
        allowed_sources=tuple(args.allow_source),
        allowed_addresses=tuple(args.allow_address),
        response_days=args.response_days,
        response_bytes=args.response_bytes,
        api_keys=_api_keys(args.api_key),
        max_file_bytes=manners.max_file_bytes,
        batch_lines=manners.batch_lines,
        kept_revisions=args.kept_revisions,
        max_revisions=args.max_revisions,
        move_store=args.move_store,
    )
    options = HouseOptions(
        engine=config,
        server=manners,
        settings=settings,
        host=args.host,
        port=args.port,
        lora_modules=lora_modules(args.lora_modules),
        metrics_adapters=args.metrics_adapters,
        metrics_key=key_given("--metrics-key", args.metrics_key),
        with_examples=args.examples and config.model == DEMO,
    )
    serve(options, _announce)
    return 0


def _api_keys(given: list[str] | None) -> tuple[str, ...]:
    """The keys of the flags, else of the environment."""
    if given is not None:
        return tuple(key for text in given if (key := key_given("--api-key", text)))
    return tuple(key.strip() for key in os.environ.get("ARIL_API_KEY", "").split(",") if key.strip())


def _announce(house: House, adapters: list[str]) -> None:
    print(f"Aril serves {house.engine.model.id} at {house.url}")
    print(f"  adapters    {', '.join(adapters) or 'none'}")
    asks = ", for holders of a key: of --api-key or `aril keys`" if house.admin.keyring.asks else ""
    print(f"  OpenAI API  {house.url}/v1{asks}")
    key = f"key in {house.admin.key_path}" if house.admin.key_path else "key as given"
    print(f"  admin API   {house.url}/admin/v1, {key}")
    print("  Ctrl-C ends it", flush=True)
    sys.stdout.flush()


EXPORT = Command("serve a model and its adapters over HTTP", add_arguments, run)
