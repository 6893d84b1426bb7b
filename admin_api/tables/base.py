"""What all tables share: one metadata, names for constraints, and whole seconds since the epoch as times."""

from __future__ import annotations

import time

from sqlalchemy import MetaData
from sqlalchemy.orm import DeclarativeBase

NAMES = {
    "pk": "pk_%(table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}
NAME_LENGTH = 128


def now() -> int:
    """Seconds since the epoch."""
    return int(time.time())


class Base(DeclarativeBase):
    """Constraints have names, so that a later migration can address them."""

    metadata = MetaData(naming_convention=NAMES)
