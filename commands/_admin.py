"""What the commands about the registry share: where the server is, whose key they use, and how they answer.

An answer is one document for programs (`--json`) or lines for people, on stdout; all else goes to stderr. The exit code
is 0 when it was done, 1 when it was refused or failed, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ArilError, InvalidRequest
from ._flags import add_state_dir, add_url_flags, key_given
from ._running import state_dir_of, urls

if TYPE_CHECKING:
    from ._remote import Admin

KEY_FILE = "admin.key"


@dataclass(frozen=True, slots=True)
class Told:
    """What an action came to; with `failure` it is told all the same, and the exit code is that of the failure."""

    document: Any
    lines: Iterable[str] = ()
    failure: ArilError | None = None


Act = Callable[[argparse.Namespace, "Admin"], Told]


def add_action(actions: Any, name: str, act: Act, help: str) -> argparse.ArgumentParser:
    """One action of a command, with the flags of all of them."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help, description=help)
    parser.set_defaults(act=act)
    add_admin_flags(parser)
    return parser


def add_actions(parser: argparse.ArgumentParser) -> Any:
    """Where actions are added to."""
    return parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)


def add_admin_flags(parser: argparse.ArgumentParser) -> None:
    """Where the server is and whose key is used."""
    group = parser.add_argument_group("server")
    add_url_flags(group)
    group.add_argument(
        "--admin-key",
        default=os.environ.get("ARIL_ADMIN_KEY") or None,
        metavar="KEY",
        help="a key that may do this (or ARIL_ADMIN_KEY; by default that of a server on this machine)",
    )
    add_state_dir(group)
    group.add_argument("--tenant", metavar="NAME", help="act in this tenant, with a key that has the scope admin")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, for programs")


def run(args: argparse.Namespace) -> int:
    """Ask the server, and tell what it answers."""
    with opened(args) as server:
        return say(args, args.act(args, server))


def opened(args: argparse.Namespace) -> Admin:
    """The server that the flags name."""
    from ._remote import Admin

    return Admin(args.url, _admin_key(args), tenant=args.tenant)


def say(args: argparse.Namespace, told: Told) -> int:
    """Print it; raises its failure."""
    if args.json:
        print(json.dumps(told.document, indent=2, ensure_ascii=False))
    else:
        for line in told.lines:
            print(line)
    sys.stdout.flush()
    if told.failure is not None:
        raise told.failure
    return 0


def remark(line: str) -> None:
    """Something for people beside the answer."""
    print(line, file=sys.stderr, flush=True)


def _admin_key(args: argparse.Namespace) -> str:
    """The key that was given, or the one that a server on this machine keeps in its state folder."""
    given = key_given("--admin-key", args.admin_key)
    if given is not None:
        return given
    folder = Path(args.state_dir) if args.state_dir is not None else state_dir_of(args.url)
    if folder is None:
        others = urls()
        raise InvalidRequest(
            f"no admin key for {args.url}, where no server of yours on this machine is: give its key by --admin-key or "
            "ARIL_ADMIN_KEY, or by --state-dir the folder with its admin.key, which the server names as it starts"
            + (f"; yours on this machine: --url {' or '.join(others)}" if others else "")
        )
    try:
        return (folder / KEY_FILE).read_text().strip()
    except OSError:
        path = folder / KEY_FILE
        raise InvalidRequest(f"no admin key: give --admin-key or ARIL_ADMIN_KEY; {path} cannot be read") from None
