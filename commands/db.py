"""`aril db upgrade`: bring the registry's database to this version's schema. `aril serve` does the same at start."""

from __future__ import annotations

import argparse
import os

from ..core.errors import InvalidRequest
from ._command import Command
from ._flags import add_state_dir, state_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to do, and to which database."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    upgrade = actions.add_parser("upgrade", help="run the migrations that are missing")
    upgrade.add_argument(
        "--database-url", default=os.environ.get("ARIL_DATABASE_URL"), help="the database (or ARIL_DATABASE_URL)"
    )
    upgrade.add_argument("model", metavar="MODEL", nargs="?", help="the model whose state folder holds the database")
    add_state_dir(upgrade)


def run(args: argparse.Namespace) -> int:
    """Upgrade, and say where the schema stands."""
    from ..admin_api.db import Database
    from ..admin_api.migrate import upgrade
    from ..admin_api.settings import AdminSettings

    if not (args.database_url or args.state_dir or args.model):
        raise InvalidRequest("say which database: --database-url URL, --state-dir FOLDER, or the MODEL that it serves")
    folder = state_dir(args.state_dir, args.model or "")
    settings = AdminSettings(state_dir=folder, database_url=args.database_url)
    database = Database(settings.url)
    try:
        print(f"schema {upgrade(database)}")
    finally:
        database.close()
    return 0


EXPORT = Command("look after the registry's database", add_arguments, run)
