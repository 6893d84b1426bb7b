"""PostgreSQL's notifications: who listens hears that the audit has grown, within milliseconds.

Imported where the database is PostgreSQL only: its driver takes a while to import.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
from sqlalchemy import Engine

from ..core.log import event, get_logger
from .audit import CHANNEL
from .feed import LISTENING

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds before a lost channel is tried again
APPLICATION = "aril feed"  # what pg_stat_activity calls the connection

log = get_logger(__name__)


async def listen(engine: Engine, on_news: Callable[[], None]) -> None:
    """Call `on_news` whenever something may have changed, until cancelled; a lost channel is tried again and again."""
    pause = FIRST_PAUSE
    while True:
        try:
            async with await _connected(engine) as connection:
                await connection.execute(f"LISTEN {CHANNEL}")
                LISTENING.set(1)
                pause = FIRST_PAUSE
                on_news()  # what came before
                async for _ in connection.notifies():
                    on_news()
        except psycopg.Error as error:
            log.warning(event("channel_of_changes_lost", error=str(error).strip(), again_in=f"{pause:g}s"))
        finally:
            LISTENING.set(0)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


async def _connected(engine: Engine) -> psycopg.AsyncConnection:
    _, options = engine.dialect.create_connect_args(engine.url)
    return await psycopg.AsyncConnection.connect(**options, autocommit=True, application_name=APPLICATION)
