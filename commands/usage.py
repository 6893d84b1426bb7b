"""`aril usage`: what was used, by day, tenant, key, model and revision, or added up over some of these."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import InvalidRequest
from ._admin import Told, add_admin_flags, opened, say
from ._command import Command
from ._tables import table

if TYPE_CHECKING:
    from ._remote import Admin

GROUPS = ("day", "tenant", "key", "model", "revision")
COUNTS = ("requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of what, and how it is shown."""
    add_admin_flags(parser)
    parser.add_argument("--csv", action="store_true", help="CSV on stdout, for programs")
    parser.add_argument("--from", dest="first", metavar="DAY", help="the first day, as 2026-11-30, in UTC")
    parser.add_argument("--to", dest="last", metavar="DAY", help="the last day")
    parser.add_argument("--key", metavar="ID", help="of this key alone")
    parser.add_argument("--model", metavar="NAME", help="of this adapter, or of the base")
    groups = ",".join(GROUPS)
    parser.add_argument("--group-by", default=groups, metavar="GROUPS", help=f"some of these, with commas ({groups})")


def run(args: argparse.Namespace) -> int:
    """Ask, and print it."""
    if args.csv and args.json:
        raise InvalidRequest("--csv and --json: take one of them")
    asked = {"from": args.first, "to": args.last, "key": args.key, "model": args.model, "group_by": args.group_by}
    with opened(args) as server:
        if not args.csv:
            return say(args, _told(server.get("/usage", **asked)))
        _print(server, asked)
    return 0


def _print(server: Admin, asked: dict[str, Any]) -> None:
    for line in server.text("/usage", **asked, format="csv"):
        print(line)


def _told(found: dict[str, Any]) -> Told:
    groups: Sequence[str] = found["group_by"]
    rows = [[line.get(name) for name in (*groups, *COUNTS)] for line in found["data"]]
    titles = [name.upper().replace("_", " ") for name in (*groups, *COUNTS)]
    return Told(found, table(titles, rows))


EXPORT = Command("requests and tokens by day, key and revision", add_arguments, run)
