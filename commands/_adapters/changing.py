"""What else becomes of an adapter: activated, deactivated, retired, edited, deleted."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ...core.errors import InvalidRequest
from .._admin import Told
from .names import add_named, named
from .showing import adapter_told, revision_lines

if TYPE_CHECKING:
    from .._remote import Admin


def add_name(parser: argparse.ArgumentParser) -> None:
    """An adapter."""
    parser.add_argument("name")


def add_activate_flags(parser: argparse.ArgumentParser) -> None:
    """`activate`."""
    add_named(parser, "NAME[@REVISION]", "without @REVISION: the newest that is ready")
    parser.add_argument("--revision", type=int, help="the same as @REVISION")


def add_recheck_flags(parser: argparse.ArgumentParser) -> None:
    """`recheck`."""
    parser.add_argument("names", metavar="NAME", nargs="*")
    parser.add_argument("--all", action="store_true", help="every adapter that is not served because of its base")


def add_revision(parser: argparse.ArgumentParser) -> None:
    """One revision."""
    add_named(parser, "NAME@REVISION")


def add_edit_flags(parser: argparse.ArgumentParser) -> None:
    """`edit`."""
    add_name(parser)
    parser.add_argument("--description")
    public = parser.add_mutually_exclusive_group()
    public.add_argument("--public", action="store_const", const=True, help="every tenant may use it")
    public.add_argument("--private", dest="public", action="store_const", const=False, help="only its own tenant may")


def activate(args: argparse.Namespace, server: Admin) -> Told:
    """Let the bare name mean a revision."""
    asked = named(args.name)
    if asked.revision is not None and args.revision not in (None, asked.revision):
        raise InvalidRequest(f"{asked} or --revision {args.revision}? give one of them")
    number = args.revision if asked.revision is None else asked.revision
    return adapter_told(server.post(_path(asked.name, "activate"), revision=number))


def deactivate(args: argparse.Namespace, server: Admin) -> Told:
    """Let the bare name mean nothing."""
    return adapter_told(server.post(_path(args.name, "deactivate")))


def recheck(args: argparse.Namespace, server: Admin) -> Told:
    """Send what was checked on another base through the gate again."""
    if bool(args.names) == args.all:
        raise InvalidRequest("which adapters? give their names, or --all")
    names = [each["name"] for each in server.all("/adapters") if _is_elsewhere(each)] if args.all else args.names
    found = [server.post(_path(name, "recheck")) for name in names]
    return Told({"object": "list", "data": found}, [f"{each['name']} is being checked" for each in found])


def retire(args: argparse.Namespace, server: Admin) -> Told:
    """Make a revision history."""
    asked = named(args.name)
    if asked.revision is None:
        raise InvalidRequest(f"which revision? write it as {asked.name}@3")
    revision = server.post(_path(asked.name, "revisions", asked.revision, "retire"))
    return Told(revision, revision_lines(asked.name, revision))


def edit(args: argparse.Namespace, server: Admin) -> Told:
    """Change what is said of it."""
    given: dict[str, Any] = {"description": args.description, "public": args.public}
    said = {name: value for name, value in given.items() if value is not None}
    if not said:
        raise InvalidRequest("nothing to change: give --description, --public or --private")
    return adapter_told(server.patch(_path(args.name), said))


def delete(args: argparse.Namespace, server: Admin) -> Told:
    """Forget it; the answer comes when its last request has ended."""
    return Told(server.delete(_path(args.name)), [f"deleted {args.name}"])


def _is_elsewhere(adapter: dict[str, Any]) -> bool:
    return any(revision["fault"] for revision in adapter["revisions"])


def _path(name: str, *more: object) -> str:
    from .._remote import adapter_path

    return adapter_path(name, *more)
