"""Which adapter store belongs to this database."""

from __future__ import annotations

from sqlalchemy import BigInteger, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, now

ONLY = 1


class Store(Base):
    """The one store; its row is there from the first start on."""

    __tablename__ = "stores"

    id: Mapped[int] = mapped_column(primary_key=True, default=ONLY, autoincrement=False)
    mark: Mapped[str] = mapped_column(String(256))  # what the store itself says that it is
    place: Mapped[str] = mapped_column(Text)  # where a server saw it last, for people
    since: Mapped[int] = mapped_column(BigInteger, default=now)
