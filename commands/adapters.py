"""`aril adapters ...`: the registry of a running server, through its admin API."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import InvalidRequest
from ._command import Command
from ._flags import add_api_key, add_state_dir, add_url_flags, state_dir

if TYPE_CHECKING:
    from ._remote import Remote

KEY_FILE = "admin.key"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One action for each thing that the admin API does."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    upload = actions.add_parser("upload", help="add an adapter, or a new revision of one, and serve it")
    upload.add_argument("name")
    upload.add_argument("source", type=Path, help="a PEFT folder, or a .zip or .tar.gz of one")
    upload.add_argument("--description")
    upload.add_argument("--inactive", action="store_true", help="keep it, but do not serve it yet")
    show = actions.add_parser("show", help="one adapter with its revisions")
    activate = actions.add_parser("activate", help="serve an adapter")
    activate.add_argument("--revision", type=int, help="serve this revision (the newest)")
    named = [show, activate]
    named.append(actions.add_parser("deactivate", help="stop serving it, but keep it"))
    named.append(actions.add_parser("delete", help="stop serving it, and forget it"))
    for action in named:
        action.add_argument("name")
    for action in (*named, upload, actions.add_parser("list", help="all adapters")):
        add_url_flags(action)
        add_api_key(action)
        action.add_argument("--admin-key", default=os.environ.get("ARIL_ADMIN_KEY"), help="or ARIL_ADMIN_KEY")
        add_state_dir(action)


def run(args: argparse.Namespace) -> int:
    """Ask the server, and print what it answers."""
    from ._remote import Remote

    with Remote(args.url, api_key=args.api_key, admin_key=_admin_key(args)) as server:
        _act(args, server)
    return 0


def _act(args: argparse.Namespace, server: Remote) -> None:
    if args.action == "list":
        _table(server.adapters())
    elif args.action == "delete":
        server.delete(args.name)
        print(f"deleted {args.name}")
    elif args.action == "show":
        _details(server.adapter(args.name))
    elif args.action == "upload":
        found = server.upload(args.name, args.source, description=args.description, activate=not args.inactive)
        _details(found)
    else:
        _details(server.change(args.name, args.action, revision=getattr(args, "revision", None)))


def _admin_key(args: argparse.Namespace) -> str:
    """The key that was given, or the one that a server on this machine keeps in its state folder."""
    from ._remote import Remote

    if args.admin_key:
        return str(args.admin_key)
    folder = args.state_dir
    if folder is None:
        with Remote(args.url, api_key=args.api_key) as server:
            folder = state_dir(None, server.models()[0]["root"])
    path = Path(folder) / KEY_FILE
    try:
        return path.read_text().strip()
    except OSError:
        raise InvalidRequest(f"no admin key: give --admin-key or ARIL_ADMIN_KEY; {path} cannot be read") from None


def _table(found: list[dict[str, Any]]) -> None:
    width = max([len("NAME"), *(len(adapter["name"]) for adapter in found)])
    print(f"{'NAME':<{width}}  {'ACTIVE':<6}  {'REVISION':>8}  {'RANK':>4}  {'KiB':>8}  DESCRIPTION")
    for adapter in found:
        newest = _shown_revision(adapter)
        print(
            f"{adapter['name']:<{width}}  {_activity(adapter):<6}  {newest['number']:>8}  "
            f"{newest['rank']:>4}  {newest['size'] / 1024:>8.0f}  {adapter['description']}"
        )


def _activity(adapter: dict[str, Any]) -> str:
    if adapter["fault"]:
        return "fault"
    return "yes" if adapter["active"] else "no"


def _details(adapter: dict[str, Any]) -> None:
    state = f"active, revision {adapter['revision']}" if adapter["active"] else "not active"
    print(f"{adapter['name']}: {state}")
    if adapter["description"]:
        print(f"  {adapter['description']}")
    if adapter["fault"]:
        print(f"  cannot be served: {adapter['fault']}")
    for revision in adapter["revisions"]:
        print(
            f"  revision {revision['number']}: rank {revision['rank']}, {revision['size'] / 1024:.0f} KiB, "
            f"{', '.join(revision['target_modules'])}, sha256 {revision['digest'][:12]}"
        )
        for note in revision["notes"]:
            print(f"    {note}")


def _shown_revision(adapter: dict[str, Any]) -> dict[str, Any]:
    """The revision that is served, else the newest."""
    found = max(adapter["revisions"], key=lambda r: (r["number"] == adapter["revision"], r["number"]))
    return dict(found)


EXPORT = Command("upload, list and switch the adapters of a running server", add_arguments, run)
