"""Revisions: recorded when their bytes are durable, chosen by number, retired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ...core.callers import Caller
from ...core.errors import Conflict, Forbidden, NotFound
from ...lora.config import BASE_FIELD
from ..holdings import GONE, check_adapters
from ..tables import DEFAULT_ALIAS, Adapter, Revision, State, now
from .adapters import adapter, find, note
from .pointing import point, whole
from .snapshot import Judge

MOST = 100  # revisions of an adapter


@dataclass(frozen=True, slots=True)
class Facts:
    """What the files say of themselves."""

    digest: str
    size: int  # bytes
    rank: int
    target_modules: Sequence[str]
    config: Mapping[str, object]
    notes: Sequence[str]  # remarks for a person
    licence: str | None = None  # that the card states

    def is_of(self, revision: Revision) -> bool:
        """Whether `revision` has these bytes and was trained on the same base, as far as they say."""
        return self.digest == revision.digest and self.config.get(BASE_FIELD) == revision.config.get(BASE_FIELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Particulars:
    """What an uploader says of the bytes, and wants done with them.

    `activate`: once READY, True moves the alias `default` here, None does so when there is none, False never.
    """

    description: str | None = None  # of the adapter; None leaves it as it is
    note: str = ""
    tags: Sequence[str] = ()
    activate: bool | None = None
    force: bool = False  # in spite of another base's name
    golden: Sequence[Mapping[str, Any]] = ()  # prompts with what must come
    source: str = "upload"


def record(
    session: Session, caller: Caller, name: str, facts: Facts, said: Particulars, *, most: int = MOST
) -> Revision:
    """The revision of `name` with these bytes, which must be durable: a new one, or the newest if that has them and
    names the same base.

    Of more than `most` the oldest without bytes are forgotten; raises Conflict where there are none of these."""
    owner = find(session, caller, name, lock=True) or _new(session, caller, name)
    if said.description is not None:
        owner.description = said.description
    newest = owner.revisions[-1] if owner.revisions else None
    if newest is not None and facts.is_of(newest):
        return _again(session, caller, newest, said)
    _make_room(session, caller, owner, most)
    revision = Revision(
        number=newest.number + 1 if newest else 1,
        digest=facts.digest,
        size=facts.size,
        rank=facts.rank,
        target_modules=list(facts.target_modules),
        notes=list(facts.notes),
        config=dict(facts.config),
        licence=facts.licence,
        author=caller.name,
        source=said.source,
        state=State.UPLOADED,
    )
    _take_in(revision, said)
    owner.revisions.append(revision)
    session.flush()
    check_adapters(session, owner.tenant_id)
    note(session, caller, "upload", owner, revision=revision, after=_told(revision))
    return revision


def chosen(owner: Adapter, number: int | None) -> Revision:
    """Revision `number`, or the newest that is READY; raises NotFound, and Conflict when it cannot be served."""
    found = next((r for r in reversed(owner.revisions) if number == r.number or _is_candidate(r, number)), None)
    if found is None:
        known = ", ".join(str(r.number) for r in owner.revisions) or "none"
        wanted = f"revision {number}" if number is not None else "revision that could be served"
        raise NotFound(f"adapter {owner.name!r} has no {wanted}; there are {known}", param="revision")
    if found.state is not State.READY:
        raise Conflict(f"revision {found.number} of {owner.name!r} {_WHY[found.state]}", param="revision")
    return found


def revision(session: Session, caller: Caller, name: str, number: int) -> Revision:
    """Revision `number` of `name`; raises NotFound."""
    return _numbered(adapter(session, caller, name), number)


def retire(session: Session, caller: Caller, name: str, number: int) -> Revision:
    """Make a revision history: it resolves no more and its bytes may go. Raises Conflict while an alias names it, and
    before the gate has decided."""
    owner = adapter(session, caller, name, lock=True)
    revision = _numbered(owner, number)
    if users := [f"{name}@{alias.name}" for alias in owner.aliases if number in alias.named]:
        raise Conflict(f"revision {number} of {name!r} is named by {', '.join(users)}; move that first")
    if revision.state in (State.UPLOADED, State.CHECKING):
        raise Conflict(f"revision {number} of {name!r} {_WHY[revision.state]}; wait for that, or delete the adapter")
    if revision.state is not State.RETIRED:
        _retire(session, caller, revision)
    return revision


def recheck(session: Session, caller: Caller, name: str, judge: Judge) -> Adapter:
    """Have every READY revision of `name` that was checked on another base checked on this one; until then it is not
    served. Raises NotFound, and Conflict when there is none."""
    owner = adapter(session, caller, name, lock=True)
    others = [each for each in owner.revisions if each.state is State.READY and judge(each.base) is not None]
    if not others:
        raise Conflict(f"no revision of {name!r} that is ready was checked on another base", param="name")
    for each in others:
        check_again(session, caller, each)
    return owner


def check_again(session: Session, caller: Caller, revision: Revision) -> None:
    """Send a revision through the gate once more. No alias moves because of it."""
    before = change_state(revision, State.UPLOADED) | {"base": str(revision.base.get("name"))}
    revision.report, revision.activate, revision.attempts = None, False, 0
    note(session, caller, "recheck", revision.adapter, revision=revision, before=before)


def retire_older(session: Session, caller: Caller, kept: int) -> list[Adapter]:
    """Of the revisions that are older than what the bare name means, retire all but the `kept` newest of each adapter.

    Those that an alias names, or could be taken back to, stay. Returns the adapters that changed.
    """
    many = select(Revision.adapter_id).where(Revision.state == State.READY)
    many = many.group_by(Revision.adapter_id).having(func.count() > kept)
    owners = select(Adapter).where(Adapter.id.in_(many)).order_by(Adapter.id).with_for_update(of=Adapter)
    return [owner for owner in session.scalars(owners) if _retire_older(session, caller, owner, kept)]


def needed_digests(session: Session) -> set[str]:
    """The bytes that some revision still needs."""
    return set(session.scalars(select(Revision.digest).where(Revision.state.not_in(GONE))))


def is_needed(session: Session, digest: str) -> bool:
    """Whether some revision needs these bytes."""
    named = select(Revision.id).where(Revision.digest == digest, Revision.state.not_in(GONE)).limit(1)
    return session.scalars(named).first() is not None


def change_state(revision: Revision, state: State) -> dict[str, str]:
    """Put a revision into `state`; what it was in, for the audit."""
    before = {"state": revision.state.value}
    revision.state, revision.changed = state, now()
    if state is not State.CHECKING:
        revision.checked_by = revision.checked_until = None
    return before


_WHY = {
    State.UPLOADED: "has not been checked yet",
    State.CHECKING: "is being checked",
    State.REJECTED: "was rejected; its report says why",
    State.RETIRED: "is retired, its bytes are gone; upload them again",
}


def _numbered(owner: Adapter, number: int) -> Revision:
    found = next((r for r in owner.revisions if r.number == number), None)
    if found is None:
        raise NotFound(f"adapter {owner.name!r} has no revision {number}", param="revision", code="revision_not_found")
    return found


def _is_candidate(revision: Revision, number: int | None) -> bool:
    return number is None and revision.state is State.READY


def _new(session: Session, caller: Caller, name: str) -> Adapter:
    if not caller.may_use(name):
        raise Forbidden(f"your key is kept to other adapters than {name!r}", param="name")
    owner = Adapter(name=name, description="", tenant_id=caller.tenant_id, revisions=[], aliases=[])
    session.add(owner)
    session.flush()
    return owner


def _again(session: Session, caller: Caller, revision: Revision, said: Particulars) -> Revision:
    """The newest revision's bytes have come once more."""
    if revision.state in GONE:
        before = change_state(revision, State.UPLOADED)
        revision.report = None
        _take_in(revision, said)
        session.flush()
        check_adapters(session, revision.adapter.tenant_id)
        note(session, caller, "upload", revision.adapter, revision=revision, before=before, after=_told(revision))
    elif revision.state is not State.READY:
        revision.activate = said.activate if said.activate is not None else revision.activate
    elif said.activate or (said.activate is None and revision.adapter.alias(DEFAULT_ALIAS) is None):
        point(session, caller, revision.adapter, DEFAULT_ALIAS, whole(revision.number))
    return revision


def _make_room(session: Session, caller: Caller, owner: Adapter, most: int) -> None:
    """Forget the oldest history where one more would be too many; the newest stays, as numbers go on from it."""
    over = len(owner.revisions) + 1 - most
    history = [revision for revision in owner.revisions[:-1] if revision.state in GONE][: max(over, 0)]
    if len(history) < over:
        raise Conflict(
            f"adapter {owner.name!r} has {len(owner.revisions)} revisions, of at most {most} (--max-revisions): retire "
            "some that nothing uses, or upload under another name",
            param="name",
            code="too_many_revisions",
        )
    if history:
        for revision in history:
            owner.revisions.remove(revision)
        note(session, caller, "forget", owner, before={"revisions": [revision.number for revision in history]})


def _retire_older(session: Session, caller: Caller, owner: Adapter, kept: int) -> bool:
    newest = owner.active.number if owner.active else 0
    needed = {number for alias in owner.aliases for number in alias.named | alias.previous}
    older = [r for r in owner.revisions if r.number < newest and r.state is State.READY][:-kept]
    leaving = [revision for revision in older if revision.number not in needed]
    for revision in leaving:
        _retire(session, caller, revision)
    return bool(leaving)


def _take_in(revision: Revision, said: Particulars) -> None:
    revision.note, revision.tags = said.note, list(said.tags)
    revision.activate, revision.forced = said.activate, said.force
    revision.golden = [dict(prompt) for prompt in said.golden]
    revision.attempts = 0


def _retire(session: Session, caller: Caller, revision: Revision) -> None:
    before = change_state(revision, State.RETIRED)
    note(session, caller, "retire", revision.adapter, revision=revision, before=before)


def _told(revision: Revision) -> dict[str, Any]:
    """What the audit keeps of an upload beside number and digest."""
    said = {"state": revision.state.value, "source": revision.source, "activate": revision.activate}
    return said | ({"force": True} if revision.forced else {})
