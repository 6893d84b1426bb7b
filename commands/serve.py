"""`aril serve MODEL`: the server, until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from ._command import Command
from ._flags import add_engine_flags, add_state_dir, engine_config, state_dir

if TYPE_CHECKING:
    from ._house import House

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
        default=os.environ.get("ARIL_ADMIN_KEY"),
        help="key of /admin/v1 (or ARIL_ADMIN_KEY; by default one is made and kept in the state folder)",
    )
    group.add_argument(
        "--database-url",
        default=os.environ.get("ARIL_DATABASE_URL"),
        help="SQLite or PostgreSQL (or ARIL_DATABASE_URL; by default SQLite in the state folder)",
    )
    add_state_dir(parser)
    group.add_argument(
        "--examples",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with the model demo: bring the example adapters at the first start",
    )
    group.add_argument("--log-level", choices=LOG_LEVELS, default="info")
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Build the house and serve."""
    from ..admin_api.settings import AdminSettings
    from ..core import log

    log.configure(args.log_level.upper())
    config = engine_config(args)
    from ..models.source import DEMO
    from ._house import HouseOptions, serve

    settings = AdminSettings(
        state_dir=state_dir(args.state_dir, config.model),
        database_url=args.database_url or None,
        admin_key=args.admin_key or None,
    )
    options = HouseOptions(
        engine=config,
        settings=settings,
        host=args.host,
        port=args.port,
        api_keys=_api_keys(args.api_key),
        with_examples=args.examples and config.model == DEMO,
    )
    serve(options, _announce)
    return 0


def _api_keys(given: list[str] | None) -> tuple[str, ...]:
    """The keys of the flags, else of the environment."""
    keys = given or os.environ.get("ARIL_API_KEY", "").split(",")
    return tuple(key.strip() for key in keys if key.strip())


def _announce(house: House, adapters: list[str]) -> None:
    print(f"Aril serves {house.engine.model.id} at {house.url}")
    print(f"  adapters    {', '.join(adapters) or 'none yet'}")
    print(f"  OpenAI API  {house.url}/v1")
    key = f"key in {house.admin.key_path}" if house.admin.key_path else "key as given"
    print(f"  admin API   {house.url}/admin/v1, {key}")
    print("  Ctrl-C ends it", flush=True)
    sys.stdout.flush()


EXPORT = Command("serve a model and its adapters over HTTP", add_arguments, run)
