"""Uploading an adapter and waiting for the gate."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import ArilError, InvalidRequest
from .._admin import Told, remark
from .._tables import plain
from .names import add_named, named
from .showing import revision_lines

if TYPE_CHECKING:
    from .._remote import Admin, Listener, Wishes

GATE_SECONDS = 600.0
ACTIVATE = {"always": True, "first": None, "never": False}


def add_upload_flags(parser: argparse.ArgumentParser) -> None:
    """`upload`."""
    parser.add_argument("name")
    parser.add_argument(
        "source", help="a PEFT folder, a .zip or .tar.gz of one, or a URL that the server may fetch from"
    )
    parser.add_argument("--description", help="of the adapter")
    parser.add_argument("--note", default="", help="of this revision")
    parser.add_argument("--tag", action="append", default=[], help="of this revision; may be given several times")
    parser.add_argument(
        "--activate",
        choices=list(ACTIVATE),
        default="first",
        help="whether the bare name means it once it is ready; first: where it means nothing yet (first)",
    )
    parser.add_argument(
        "--inactive", dest="activate", action="store_const", const="never", help="the same as --activate never"
    )
    parser.add_argument("--force", action="store_true", help="although its config names another base")
    parser.add_argument(
        "--golden",
        type=Path,
        metavar="FILE",
        help='JSON list of prompts, [{"prompt": "...", "expect": "..."}], 5 at most',
    )
    parser.add_argument("--sha256", metavar="HEX", help="that a URL's file must have")
    parser.add_argument("--parts", action="store_true", help="send it in parts, as large ones are anyway")
    add_wait_flags(parser)
    parser.add_argument("--no-wait", action="store_true", help="do not wait for the gate")


def add_wait_flags(parser: argparse.ArgumentParser) -> None:
    """How long."""
    parser.add_argument(
        "--timeout", type=float, default=GATE_SECONDS, metavar="SECONDS", help=f"for the gate ({GATE_SECONDS:g})"
    )


def add_wait_for(parser: argparse.ArgumentParser) -> None:
    """`wait`."""
    add_named(parser, "NAME[@REVISION]", "without @REVISION: the newest")
    add_wait_flags(parser)


def upload(args: argparse.Namespace, server: Admin) -> Told:
    """Bring it into the registry and, unless told not to, wait until it has been checked."""
    from .._remote import adapter_path
    from .._remote import upload as send

    wishes = _wishes(args)
    with _watched(args.name) as listener:
        number = send(
            server, args.name, args.source, wishes, in_parts=args.parts, sha256=args.sha256, listener=listener
        )
    if args.no_wait:
        revision = server.get(adapter_path(args.name, "revisions", number))
        return Told(revision, [f"{args.name}@{number}: {revision['state']}"])
    return _decided(args, server, args.name, number)


def wait(args: argparse.Namespace, server: Admin) -> Told:
    """Wait until a revision, by default the newest, has been checked."""
    from .._remote import adapter_path

    asked = named(args.name)
    number = asked.revision
    if number is None:
        number = server.get(adapter_path(asked.name))["revisions"][-1]["number"]
    return _decided(args, server, asked.name, number)


def _decided(args: argparse.Namespace, server: Admin, name: str, number: int) -> Told:
    from .._remote import decided, rejection

    revision = decided(server, name, number, timeout=args.timeout, tell=remark)
    failure = rejection(name, revision)
    if failure is None and revision["state"] == "retired":
        failure = ArilError(f"{name}@{number} is retired")
    return Told(revision, [] if failure else revision_lines(name, revision), failure)


def _wishes(args: argparse.Namespace) -> Wishes:
    from .._remote import Wishes

    return Wishes(
        description=args.description,
        note=args.note,
        tags=tuple(args.tag),
        activate=ACTIVATE[args.activate],
        force=args.force,
        golden=tuple(_golden(args.golden)) if args.golden else (),
    )


def _golden(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"--golden {path}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(found, list):
        raise InvalidRequest(f"--golden {path}: it holds no JSON list of prompts")
    return found


@contextmanager
def _watched(name: str) -> Iterator[Listener]:
    """A progress bar where somebody looks at one."""
    from tqdm import tqdm

    from .._remote import Listener

    with tqdm(desc=plain(name), unit="B", unit_scale=True, unit_divisor=1024, disable=None, leave=False) as bar:

        def moved(done: int, of: int) -> None:
            bar.total = of
            bar.update(done - bar.n)

        yield Listener(moved, remark)
