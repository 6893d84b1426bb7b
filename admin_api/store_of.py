"""One store for each database: a server that comes with another is refused before it serves, or drops, anything."""

from __future__ import annotations

from sqlalchemy.orm import Session

from ..core.callers import EVERYTHING, Caller
from ..core.errors import Conflict
from . import audit
from .tables import Store
from .tables.stores import ONLY

OPERATOR = Caller(name="operator", scopes=EVERYTHING)  # who starts a server
KIND: audit.Kind = "store"


def belong(session: Session, mark: str, place: str, *, moved: bool) -> None:
    """Let the store that calls itself `mark`, at `place`, be that of the database: where there is none yet, or where an
    operator says that it has `moved`. Raises Conflict when it is another."""
    row = session.get(Store, ONLY, with_for_update=True)
    if row is None:
        session.add(Store(mark=mark, place=place))  # two at once: the second finds the row when it tries again
        session.flush()
    elif row.mark == mark:
        row.place = place
    elif not moved:
        raise Conflict(
            f"the adapters of this database are in the store {row.place} ({row.mark[:12]}), and --store is another: "
            f"{place} ({mark[:12]}). Start with the first one; where that is gone for good, --move-store makes this "
            "one the database's, and adapters whose bytes are not in it are answered with 503",
            param="store",
        )
    else:
        before, after = ({"store": each[0], "place": each[1]} for each in ((row.mark, row.place), (mark, place)))
        row.mark, row.place = mark, place
        audit.note(session, OPERATOR, "move", KIND, KIND, before=before, after=after)
