"""Adapters for people: a table of all, one with what it has, one revision with what the gate found."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .._admin import Told
from .._tables import plain, size, table, when
from .aliases import lines as alias_lines
from .aliases import spoken
from .names import DEFAULT, add_named, named

if TYPE_CHECKING:
    from .._remote import Admin

STATES = ("uploaded", "checking", "ready", "rejected", "retired")


def add_list_flags(parser: argparse.ArgumentParser) -> None:
    """`list`."""
    parser.add_argument("--query", metavar="TEXT", help="those with this in name or description")
    parser.add_argument("--state", choices=STATES, help="those with a revision in this state")


def add_show_flags(parser: argparse.ArgumentParser) -> None:
    """`show`."""
    add_named(parser, "NAME[@REVISION|@ALIAS]")


def list_all(args: argparse.Namespace, server: Admin) -> Told:
    """All adapters of the tenant, of all tenants for the scope admin."""
    found = server.all("/adapters", query=args.query, state=args.state)
    titles = ("NAME", "TENANT", "MEANS", "RANK", "SIZE", "ALIASES", "NEWEST", "STATE", "DESCRIPTION")
    return Told({"object": "list", "data": found}, table(titles, map(_row, found)))


def show(args: argparse.Namespace, server: Admin) -> Told:
    """An adapter, a revision or an alias."""
    from .._remote import adapter_path

    asked = named(args.name)
    if asked.rest is None:
        return adapter_told(server.get(adapter_path(asked.name)))
    if asked.rest.isdigit():
        revision = server.get(adapter_path(asked.name, "revisions", asked.rest))
        return Told(revision, revision_lines(asked.name, revision))
    alias = server.get(adapter_path(asked.name, "aliases", asked.alias))
    return Told(alias, alias_lines(alias))


def adapter_told(adapter: dict[str, Any]) -> Told:
    """An adapter with all that it has."""
    return Told(adapter, adapter_lines(adapter))


def adapter_lines(adapter: dict[str, Any]) -> Iterator[str]:
    """The same for people."""
    state = f"active, revision {adapter['revision']}" if adapter["active"] else "not active"
    yield f"{adapter['name']}: {state}{', public' if adapter['public'] else ''}"
    if adapter["description"]:
        yield f"  {plain(adapter['description'])}"
    if adapter["fault"]:
        yield f"  cannot be served: {adapter['fault']}"
    for alias in adapter["aliases"]:
        yield from (f"  {line}" for line in alias_lines(alias))
    for revision in adapter["revisions"]:
        yield f"  {_summary(adapter['name'], revision)}"


def revision_lines(name: str, revision: dict[str, Any]) -> Iterator[str]:
    """A revision and its report, for people."""
    yield _summary(name, revision)
    yield f"  by {plain(revision['author'])} on {when(revision['created'])}, from {plain(revision['source'])}"
    if revision["fault"]:
        yield f"  not served: {plain(revision['fault'])}"
    if revision["note"]:
        yield f"  {plain(revision['note'])}"
    if revision["tags"]:
        yield f"  tags: {plain(', '.join(revision['tags']))}"
    report = revision["report"] or {}
    for check in report.get("checks", ()):
        yield f"  {check['name']:<9}  {check['outcome']}"
    for kind, lines in (("problem", report.get("problems", ())), ("note", report.get("notes", ()))):
        yield from (f"  {kind}: {plain(str(line))}" for line in lines)
    yield from (f"  note: {plain(note)}" for note in revision["notes"])


def _summary(name: str, revision: dict[str, Any]) -> str:
    modules = ", ".join(revision["target_modules"])
    return (
        f"{name}@{revision['number']}: {revision['state']}, rank {revision['rank']}, {size(revision['size'])}, "
        f"{plain(modules)}, sha256 {revision['digest'][:12]}"
    )


def _row(adapter: dict[str, Any]) -> tuple[object, ...]:
    """Rank and size are those of the revision that the name means, mostly, else of the newest."""
    newest = adapter["revisions"][-1]
    meant = next((each for each in adapter["revisions"] if each["number"] == adapter["revision"]), newest)
    default = next((alias for alias in adapter["aliases"] if alias["name"] == DEFAULT), None)
    means = "fault" if adapter["fault"] else spoken(default["weights"]) if default else None
    others = ", ".join(alias["name"] for alias in adapter["aliases"] if alias["name"] != DEFAULT)
    told = means, meant["rank"], size(meant["size"]), others, newest["number"], newest["state"]
    return adapter["name"], adapter["tenant"], *told, adapter["description"]
