"""`aril tenants ...`: who owns adapters and keys, and how much they may use."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..core.errors import InvalidRequest
from ._admin import Told, add_action, add_actions, run
from ._command import Command
from ._limits import AMOUNTS, RATES, add_limit_flags, limits_in, shown
from ._tables import size, table

if TYPE_CHECKING:
    from ._remote import Admin

LIMITS = (*RATES, *AMOUNTS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One action for each thing that the admin API does."""
    actions = add_actions(parser)
    add_action(actions, "list", _list, "all tenants")
    create = add_action(actions, "create", _create, "a new tenant")
    show = add_action(actions, "show", _show, "one tenant")
    limit = add_action(actions, "limit", _limit, "change how much a tenant may use")
    delete = add_action(actions, "delete", _delete, "forget a tenant and its keys")
    for action in (create, show, limit, delete):
        action.add_argument("name")
    for action in (create, limit):
        add_limit_flags(action, LIMITS)
    delete.add_argument("--with-adapters", action="store_true", help="and its adapters; else it must have none")


def _list(_args: argparse.Namespace, server: Admin) -> Told:
    found = server.all("/tenants")
    rows = ((each["name"], each["adapters"], size(each["adapter_bytes"]), shown(each, LIMITS)) for each in found)
    return Told({"object": "list", "data": found}, table(("NAME", "ADAPTERS", "SIZE", "LIMITS"), rows))


def _create(args: argparse.Namespace, server: Admin) -> Told:
    return _told(server.post("/tenants", {"name": args.name, **limits_in(args, LIMITS)}))


def _show(args: argparse.Namespace, server: Admin) -> Told:
    return _told(server.get(_path(args.name)))


def _limit(args: argparse.Namespace, server: Admin) -> Told:
    limits = limits_in(args, LIMITS)
    if not limits:
        raise InvalidRequest("nothing to change: give a limit, as --requests-per-minute 600")
    return _told(server.patch(_path(args.name), limits))


def _delete(args: argparse.Namespace, server: Admin) -> Told:
    done = server.delete(_path(args.name), adapters="delete" if args.with_adapters else None)
    return Told(done, [f"deleted {args.name}"])


def _told(view: dict[str, Any]) -> Told:
    holds = f"{view['adapters']} adapters, {size(view['adapter_bytes'])}"
    return Told(view, [f"{view['name']}: {holds}; {shown(view, LIMITS)}"])


def _path(name: str) -> str:
    from ._remote import path_of

    return path_of("tenants", name)


EXPORT = Command("the tenants of a running server, and their limits", add_arguments, run)
