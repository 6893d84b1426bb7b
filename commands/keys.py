"""`aril keys ...`: who may do what. A key is shown once, by the command that makes it."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..core.callers import Scope
from ..core.errors import ArilError, InvalidRequest, NotFound
from ._admin import Told, add_action, add_actions, remark, run
from ._command import Command
from ._limits import RATES, add_limit_flags, limits_in, shown
from ._tables import plain, table, when

if TYPE_CHECKING:
    from ._remote import Admin

SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
ID = re.compile(r"key_[0-9a-f]{16}")
FIRST = "It is the first: from now on /v1 asks everybody for a key (Authorization: Bearer KEY; in aril: --api-key)."
FOR_GOOD = "Revoking it does not undo that; only a new registry begins without keys."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One action for each thing that the admin API does."""
    actions = add_actions(parser)
    create = add_action(actions, "create", _create, "a new key, of the tenant that --tenant names")
    create.add_argument("name", help="what it is for")
    create.add_argument(
        "--scope", action="append", choices=[scope.value for scope in Scope], help="may be given several times (infer)"
    )
    create.add_argument(
        "--adapter", action="append", metavar="NAME", help="keep it to this adapter; may be given several times"
    )
    create.add_argument("--expires", metavar="WHEN", help="12h, 30d, or a day as 2027-01-31 (never)")
    create.add_argument("--quiet", action="store_true", help="print the key alone")
    add_limit_flags(create, RATES)
    add_action(actions, "list", _list, "all keys, of --tenant or of everybody")
    limit = add_action(actions, "limit", _limit, "change how much a key may use")
    add_limit_flags(limit, RATES)
    for action in (
        add_action(actions, "show", _show, "one key, without the secret"),
        add_action(actions, "revoke", _revoke, "let a key open nothing any more, for good"),
        limit,
    ):
        action.add_argument(
            "key", metavar="ID|NAME", help="key_..., as `aril keys list` shows it, or a name that one good key has"
        )


def _create(args: argparse.Namespace, server: Admin) -> Told:
    body: dict[str, Any] = {"name": args.name, **limits_in(args, RATES)}
    body |= {"scopes": args.scope} if args.scope else {}
    body |= {"adapters": args.adapter} if args.adapter else {}
    body |= {} if args.expires is None else {"expires": _moment(args.expires)}
    if args.quiet or args.json:
        made = server.post("/keys", body)
        return Told(made, [made["key"]])
    was_open = _is_open(args.url)
    made = server.post("/keys", body)
    remark("The key is shown now and never again.")
    if was_open:
        remark(FIRST)
        remark(FOR_GOOD)
    return Told(made, [_line(made), f"  key: {made['key']}"])


def _list(_args: argparse.Namespace, server: Admin) -> Told:
    found = server.all("/keys")
    titles = ("ID", "NAME", "TENANT", "BEGINS", "SCOPES", "ADAPTERS", "STATE", "LIMITS")
    return Told({"object": "list", "data": found}, table(titles, map(_row, found)))


def _show(args: argparse.Namespace, server: Admin) -> Told:
    return _told(server.get(_path(args.key, server)))


def _limit(args: argparse.Namespace, server: Admin) -> Told:
    limits = limits_in(args, RATES)
    if not limits:
        raise InvalidRequest("nothing to change: give a limit, as --requests-per-minute 600")
    return _told(server.patch(_path(args.key, server), limits))


def _revoke(args: argparse.Namespace, server: Admin) -> Told:
    return _told(server.post(f"{_path(args.key, server)}/revoke"))


def _told(view: dict[str, Any]) -> Told:
    return Told(view, [_line(view)])


def _line(view: dict[str, Any]) -> str:
    of = f"{plain(view['name'])}, of {view['tenant']}, {', '.join(view['scopes'])}"
    kept = f", for {', '.join(view['adapters'])}" if view["adapters"] is not None else ""
    return f"{view['id']}: {of}{kept}; {_state(view)}; {shown(view, RATES)}"


def _row(view: dict[str, Any]) -> tuple[object, ...]:
    adapters = "all" if view["adapters"] is None else ", ".join(view["adapters"])
    told = view["id"], view["name"], view["tenant"], view["shown"], ", ".join(view["scopes"])
    return *told, adapters, _state(view), shown(view, RATES)


def _is_good(view: Mapping[str, Any]) -> bool:
    return view["revoked"] is None and (view["expires"] is None or view["expires"] > time.time())


def _state(view: dict[str, Any]) -> str:
    if view["revoked"] is not None:
        return f"revoked {when(view['revoked'])}"
    if view["expires"] is None:
        return "good"
    return f"{'good until' if _is_good(view) else 'expired'} {when(view['expires'])}"


def _moment(text: str) -> int:
    """A moment that is to come, in seconds since 1970."""
    if span := re.fullmatch(r"([0-9]{1,6})([mhdw])", text):
        return int(time.time()) + int(span[1]) * SECONDS[span[2]]
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"--expires {text}: write 12h, 30d, or a day as 2027-01-31", param="expires") from None
    moment = int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
    if moment <= time.time():
        begins = " (a day is meant from its first second, in UTC)" if len(text) == len("2027-01-31") else ""
        raise InvalidRequest(
            f"--expires {text} is over already{begins}; write 12h, 30d, or a later day", param="expires"
        )
    return moment


def _is_open(url: str) -> bool:
    """Whether /v1 answers without a key."""
    from ._remote import Remote

    try:
        with Remote(url) as anyone:
            anyone.models()
    except ArilError:
        return False
    return True


def _path(asked: str, server: Admin) -> str:
    """Where a key is that goes by its id, or by a name that no other good one has. Raises NotFound, and InvalidRequest
    with the ids where several have it."""
    from ._remote import path_of

    return path_of("keys", asked if ID.fullmatch(asked) else _id_of(asked, server.all("/keys")))


def _id_of(name: str, keys: Iterable[Mapping[str, Any]]) -> str:
    called = [key for key in keys if key["name"] == name]
    found = [key["id"] for key in called if _is_good(key)] or [key["id"] for key in called]
    if len(found) > 1:
        raise InvalidRequest(f"{len(found)} keys are called {name!r}: give the id, {' or '.join(found)}", param="key")
    if not found:
        raise NotFound(f"no key has the id or the name {name!r}; `aril keys list` shows both", param="key")
    return str(found[0])


EXPORT = Command("the keys of a running server: who may do what", add_arguments, run)
