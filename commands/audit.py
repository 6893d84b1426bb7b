"""`aril audit ...`: every change that was made, and whether the record of it is whole."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from ..core.errors import ArilError, InvalidRequest
from ._admin import Told, add_action, add_actions, run, say
from ._command import Command
from ._tables import plain, table, when

if TYPE_CHECKING:
    from ._remote import Admin

FILTERS = ("actor", "kind", "subject", "action")
MOST = 50  # lines, unless more are asked for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One action for each thing that the admin API does."""
    actions = add_actions(parser)
    listing = add_action(actions, "list", _list, "the newest changes")
    for name in FILTERS:
        listing.add_argument(f"--{name}", metavar=name.upper())
    listing.add_argument("--since", type=int, metavar="SECONDS", help="since 1970")
    listing.add_argument("--until", type=int, metavar="SECONDS", help="since 1970")
    listing.add_argument("--oldest", action="store_true", help="the oldest first")
    listing.add_argument("--limit", type=int, default=MOST, metavar="N", help=f"lines at most ({MOST}); 0: all")
    check = add_action(actions, "verify", _verify, "walk over the whole chain of hashes: 0 when it is sound")
    check.add_argument("--expect", metavar="HASH", help="a head of earlier, which must be in the chain")
    check.add_argument("--database-url", metavar="URL", help="look into this database, without a server")


def run_audit(args: argparse.Namespace) -> int:
    """Ask the server, or look for ourselves."""
    if getattr(args, "database_url", None):
        return say(args, _verify_offline(args))
    return run(args)


def _list(args: argparse.Namespace, server: Admin) -> Told:
    if args.limit < 0:
        raise InvalidRequest(f"--limit {args.limit}: it takes 0 or more")
    asked = {name: getattr(args, name) for name in (*FILTERS, "since", "until")}
    found = server.all("/audit", most=args.limit or None, **asked, order="oldest" if args.oldest else "newest")
    titles = ("ID", "WHEN", "WHO", "FROM", "TENANT", "ACTION", "WHAT", "BEFORE", "AFTER")
    return Told({"object": "list", "data": found}, table(titles, map(_row, found)))


def _verify(args: argparse.Namespace, server: Admin) -> Told:
    return _verdict(server.get("/audit/verify", expect=args.expect))


def _verify_offline(args: argparse.Namespace) -> Told:
    from ..admin_api.chain import verify
    from ..admin_api.db import Database

    database = Database.existing(args.database_url)
    try:
        walk = verify(database, args.expect)
    finally:
        database.close()
    told = {"lines": walk.lines, "head": walk.head, "broken": walk.broken}
    return _verdict({"object": "audit.verification", "sound": walk.reason is None, "reason": walk.reason, **told})


def _verdict(found: dict[str, Any]) -> Told:
    failure = None if found["sound"] else ArilError(f"the audit is not sound: {plain(found['reason'])}")
    return Told(found, [f"{found['lines']} sound lines", f"head {found['head'] or '-'}"], failure)


def _row(line: dict[str, Any]) -> tuple[object, ...]:
    what = f"{line['kind']} {line['subject']}" + (f" revision {line['revision']}" if line["revision"] else "")
    who = when(line["at"]), line["actor"], line["origin"], line["tenant"]
    return line["id"], *who, line["action"], what, _short(line["before"]), _short(line["after"])


def _short(values: dict[str, Any] | None) -> str | None:
    """What was said, without what says nothing."""
    if not values:
        return None
    given = {name: value for name, value in values.items() if value not in (None, [], {})}
    return " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items())


EXPORT = Command("every change that was made, and whether the record of it is whole", add_arguments, run_audit)
