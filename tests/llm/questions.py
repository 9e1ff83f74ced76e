"""Questions and replies for tests of cassettes."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gavel.llm.cassette import Question
from gavel.llm.types import Reply

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def question(text: str = "Hello", model: str = "openai/m", **params) -> Question:
    return Question(model, params, {"type": "object"}, [MESSAGES[0], {"role": "user", "content": text}])


def rows(path: Path, table: str = "replies") -> int:
    connection = sqlite3.connect(path)
    count = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    connection.close()
    return count


@asynccontextmanager
async def never(text: str = "") -> AsyncIterator[Reply]:
    raise AssertionError("asked")
    yield Reply("")


@asynccontextmanager
async def said(text: str = "hi") -> AsyncIterator[Reply]:
    yield Reply(text, 100, 20, 0.5, "stop", "m-2026")
