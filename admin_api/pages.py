"""Long lists, page by page: what all of them take and answer."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Depends, Query
from pydantic import BaseModel

from ..core.errors import InvalidRequest


class Page(BaseModel):
    """What is asked for: `limit` things behind the one that `cursor`, of the page before, ends with."""

    limit: int = 50
    cursor: str | None = None

    @property
    def number(self) -> int | None:
        """The cursor of a list that goes by ids; raises InvalidRequest for what is none."""
        if self.cursor is None:
            return None
        if not self.cursor.isascii() or not self.cursor.isdigit() or len(self.cursor) > 9:
            raise InvalidRequest("cursor: this list has not answered with it", param="cursor")
        return int(self.cursor)


async def page_of(
    limit: Annotated[int, Query(ge=1, le=1000)] = 50, cursor: Annotated[str | None, Query(max_length=512)] = None
) -> Page:
    """From the query string."""
    return Page(limit=limit, cursor=cursor)


class ListView(BaseModel):
    """Ground of all lists; with `next_cursor` the next page begins."""

    object: Literal["list"] = "list"
    next_cursor: str | None = None


PageDep = Annotated[Page, Depends(page_of)]
