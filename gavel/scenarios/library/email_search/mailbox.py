"""A mailbox that can be searched: SQLite's full-text index over generated mails."""

import re
import sqlite3
from collections.abc import Iterable

from pydantic import BaseModel

MOST_FOUND = 10
"""Mails that a search shows, at most."""
_MOST_WORDS = 12
"""Of a query; the rest is left out."""


class Mail(BaseModel):
    mail_id: str
    date: str
    """"2031-03-14", so that dates compare as texts."""
    sender: str
    subject: str
    body: str


class Mailbox:
    """The mails of one episode, in memory. To be closed, and used in the thread that made it."""

    def __init__(self, mails: Iterable[Mail]) -> None:
        self._mails = {mail.mail_id: mail for mail in mails}
        self._database = sqlite3.connect(":memory:")
        self._database.execute("CREATE VIRTUAL TABLE mails USING fts5(mail_id UNINDEXED, date, sender, subject, body)")
        rows = [(each.mail_id, each.date, each.sender, each.subject, each.body) for each in self._mails.values()]
        self._database.executemany("INSERT INTO mails VALUES (?, ?, ?, ?, ?)", rows)

    def search(self, query: str, limit: int) -> list[Mail]:
        """Mails that have all words of the query, the best match first; where none has, those with any of them.

        The words are data: no operator of the index's own language is passed on.
        """
        words = list(dict.fromkeys(re.findall(r"\w+", query[:1000].casefold())))[:_MOST_WORDS]
        if not words:
            raise ValueError("the query has no words")
        for operator in (" ", " OR "):
            match = operator.join(f'"{word}"' for word in words)
            found = self._database.execute(
                "SELECT mail_id FROM mails WHERE mails MATCH ? ORDER BY rank, mail_id LIMIT ?",
                (match, max(1, min(limit, MOST_FOUND))),
            ).fetchall()
            if found:
                return [self._mails[mail_id] for (mail_id,) in found]
        return []

    def mail(self, mail_id: str) -> Mail:
        """Raises `ValueError` for one that is not there."""
        found = self._mails.get(mail_id.strip().upper())
        if found is None:
            raise ValueError(f"there is no mail {mail_id[:40]}")
        return found

    def close(self) -> None:
        self._database.close()
