"""Aliases: moved, shared out among revisions, copied to a shadow, taken back. In effect for the next request."""

from __future__ import annotations

import argparse
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from ...core.errors import InvalidRequest
from .._admin import Told
from .._tables import plain
from .names import named

if TYPE_CHECKING:
    from .._remote import Admin

FINE = 100  # weights of a percent, where whole ones will not do
REVISION = "a number, as in `aril adapters show`"


def add_alias_flags(parser: argparse.ArgumentParser) -> None:
    """`alias`."""
    parser.add_argument("name", metavar="NAME@ALIAS", help="without @ALIAS: what the bare name means")
    parser.add_argument("revisions", metavar="REVISION[=WEIGHT]", nargs="*", help="none: show the alias")
    parser.add_argument("--sticky-header", metavar="HEADER", help="whoever sends the same value stays at one revision")
    parser.add_argument("--remove", action="store_true", help="let it mean nothing")


def add_canary_flags(parser: argparse.ArgumentParser) -> None:
    """`canary`."""
    parser.add_argument("name", metavar="NAME[@ALIAS]")
    parser.add_argument("revision", type=int, help=REVISION)
    parser.add_argument("--percent", type=_percent, default=Decimal(5), help="of the requests (5)")
    bounds = parser.add_argument_group("automatic rollback", "back to the rest when the canary does worse than this")
    bounds.add_argument("--max-error-rate", type=float, metavar="SHARE", help="of its requests, as 0.02")
    bounds.add_argument("--max-p95", type=float, metavar="SECONDS", help="that all but 5%% of its answers may take")
    bounds.add_argument("--window", type=float, metavar="SECONDS", help="that are looked back on (300)")
    bounds.add_argument("--min-requests", type=int, metavar="N", help="before it is judged (20)")
    bounds.add_argument("--no-bounds", action="store_true", help="take the bounds of before away")


def add_shadow_flags(parser: argparse.ArgumentParser) -> None:
    """`shadow`."""
    parser.add_argument("name", metavar="NAME[@ALIAS]")
    parser.add_argument("revision", type=int, nargs="?", help=REVISION)
    parser.add_argument("--share", type=float, default=1.0, help="of the requests, as 0.1 (1)")
    parser.add_argument("--remove", action="store_true", help="copy no more requests")


def add_alias_name(parser: argparse.ArgumentParser) -> None:
    """`rollback`."""
    parser.add_argument("name", metavar="NAME[@ALIAS]")


def alias(args: argparse.Namespace, server: Admin) -> Told:
    """Show, move or remove one."""
    path = _path(args.name)
    if args.remove:
        if args.revisions:
            raise InvalidRequest("--remove takes no revision")
        return Told(server.delete(path), [f"{_title(args.name)} means nothing any more"])
    body: dict[str, Any] = {} if args.sticky_header is None else {"sticky_header": args.sticky_header}
    if args.revisions:
        body["weights"] = _weights(args.revisions)
    return _told(server.put(path, body) if body else server.get(path))


def canary(args: argparse.Namespace, server: Admin) -> Told:
    """Share an alias out between the revision that it leads to and a new one."""
    path, before = _path(args.name), _seen(args, server)
    body: dict[str, Any] = {"weights": _shared(before, args.revision, args.percent)}
    given = {
        "max_error_rate": args.max_error_rate,
        "max_p95_seconds": args.max_p95,
        "window_seconds": args.window,
        "min_requests": args.min_requests,
    }
    bounds = {name: value for name, value in given.items() if value is not None}
    if bounds and args.no_bounds:
        raise InvalidRequest("--no-bounds takes bounds away; give it or bounds")
    if bounds or args.no_bounds:
        body["bounds"] = bounds or None
    return _told(server.put(path, body, match=before["etag"]))


def shadow(args: argparse.Namespace, server: Admin) -> Told:
    """Let a revision receive copies of requests, or no more of them."""
    if (args.revision is None) != args.remove:
        raise InvalidRequest("give a REVISION, or --remove")
    wanted = None if args.remove else {"revision": args.revision, "share": args.share}
    return _told(server.put(_path(args.name), {"shadow": wanted}))


def rollback(args: argparse.Namespace, server: Admin) -> Told:
    """Take the last move back."""
    return _told(server.post(f"{_path(args.name)}/rollback"))


def lines(view: dict[str, Any]) -> list[str]:
    """One alias for people."""
    found = [f"{view['adapter']}@{view['name']} -> {spoken(view['weights'])}"]
    if view["sticky_header"]:
        found.append(f"  sticky by the header {plain(view['sticky_header'])}")
    if view["shadow"]:
        found.append(f"  shadow: revision {view['shadow']['revision']} gets {100 * view['shadow']['share']:g}%, copied")
    if view["bounds"]:
        said = ", ".join(f"{name} {value:g}" for name, value in view["bounds"].items())
        found.append(f"  would be taken back beyond {said}")
    if view["history"]:
        found.append(f"  before: {spoken(view['history'][-1])}")
    return found


def spoken(weights: dict[str, int]) -> str:
    """Where an alias leads."""
    if len(weights) == 1:
        return f"revision {next(iter(weights))}"
    total = sum(weights.values())
    return ", ".join(f"revision {number} {100 * weight / total:g}%" for number, weight in weights.items())


def _told(view: dict[str, Any]) -> Told:
    return Told(view, lines(view))


def _path(text: str) -> str:
    from .._remote import adapter_path

    found = named(text)
    return adapter_path(found.name, "aliases", found.alias)


def _title(text: str) -> str:
    found = named(text)
    return f"{found.name}@{found.alias}"


def _seen(args: argparse.Namespace, server: Admin) -> dict[str, Any]:
    return server.get(_path(args.name))


def _shared(before: dict[str, Any], revision: int, percent: Decimal) -> dict[str, int]:
    """Weights that give `revision` so much, and what leads to others now the rest, in proportion."""
    others = {number: weight for number, weight in before["weights"].items() if number != str(revision)}
    if not others:
        title = f"{before['adapter']}@{before['name']}"
        raise InvalidRequest(f"{title} leads to revision {revision} alone; a canary stands beside another")
    total = sum(others.values())
    shares = {number: (100 - percent) * weight / total for number, weight in others.items()} | {str(revision): percent}
    scale = 1 if all(share == int(share) for share in shares.values()) else FINE
    return {number: max(1, round(share * scale)) for number, share in shares.items()}


def _weights(given: list[str]) -> dict[str, int]:
    """`3`, or `3=95 4=5`."""
    found: dict[str, int] = {}
    for text in given:
        number, sign, weight = text.partition("=")
        if not number.isdigit() or (sign and not weight.isdigit()) or (len(given) > 1 and not sign):
            raise InvalidRequest(f"{text!r}: write one REVISION, or several as REVISION=WEIGHT")
        if number in found:
            raise InvalidRequest(f"revision {number} is there twice")
        found[number] = int(weight) if sign else 100
    return found


def _percent(text: str) -> Decimal:
    try:
        found = Decimal(text.removesuffix("%"))
    except InvalidOperation:
        found = Decimal(0)
    if not 0 < found < 100:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 100")
    return found
