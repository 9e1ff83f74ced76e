"""Short notices between the processes that share a PostgreSQL database (LISTEN/NOTIFY); with SQLite there are none.

A notice is sent with the transaction that it is about, and may be lost when a connection is: whoever listens also looks
at the database now and then.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

_LOG = logging.getLogger(__name__)
_CHANNEL = "gavel"
_PAUSE = 2.0
"""Seconds before a lost connection is made again."""
_KEEPALIVE = 30.0


def notify(connection: sa.Connection, topic: str, text: str = "") -> None:
    """Tells all processes once the transaction is committed."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_notify(_CHANNEL, f"{topic} {text}")))


def notice(topic: str, text: sa.ColumnElement[str]) -> sa.ColumnElement[Any]:
    """What tells the same as a part of a statement on PostgreSQL."""
    return sa.func.pg_notify(_CHANNEL, sa.literal(f"{topic} ") + text)


class Notices:
    """Hears what other processes tell, and this one itself. For one event loop."""

    def __init__(self, url: sa.URL) -> None:
        self._url = url
        self._heard: dict[str, Callable[[str], None]] = {}
        self._task: asyncio.Task[None] | None = None

    def on(self, topic: str, callback: Callable[[str], None]) -> None:
        """Calls `callback` with the text of each notice about the topic."""
        self._heard[topic] = callback

    def start(self) -> None:
        if self._url.get_backend_name() == "postgresql":
            self._task = asyncio.create_task(self._listen())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _listen(self) -> None:
        import psycopg  # nine megabytes, which SQLite does not need

        where = self._url.set(drivername="postgresql").render_as_string(hide_password=False)
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    where, autocommit=True, connect_timeout=5
                ) as connection:
                    await connection.execute(f"LISTEN {_CHANNEL}")
                    while True:
                        async for notice in connection.notifies(timeout=_KEEPALIVE):
                            self._hear(notice.payload)
                        await connection.execute("SELECT 1")  # shows a connection that was lost in silence
            except (psycopg.Error, OSError) as error:
                _LOG.warning("no notices are heard for now: %s", type(error).__name__)
            await asyncio.sleep(_PAUSE)

    def _hear(self, payload: str) -> None:
        topic, _, text = payload.partition(" ")
        if callback := self._heard.get(topic):
            callback(text)
