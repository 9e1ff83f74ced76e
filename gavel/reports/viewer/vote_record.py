"""What a judge was asked for a vote, and what it answered: from the cassette beside the run or the judged file."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gavel.llm.cassette_file import SqliteStorage
from gavel.reports.message_text import pretty_json, shown_text
from gavel.scenarios.judgement import Vote

CASSETTE = "cassettes.sqlite"


@dataclass(frozen=True, slots=True)
class VoteRecord:
    """One question and its replies."""

    model: str
    parameters: str
    schema: str
    messages: list[tuple[str, str]]
    """(role, text)"""
    replies: list[str]
    """Oldest first; those before the last one could not be used."""


def cassette_of(root: Path, path: str) -> Path | None:
    """The cassette nearest to a trajectory file, in its directory or one above it; none outside of `root`."""
    directory = (root / path).parent
    while directory.is_relative_to(root):
        if (found := directory / CASSETTE).is_file():
            return found
        if directory == root:
            return None
        directory = directory.parent
    return None


def read_vote(cassette: Path, vote: Vote) -> VoteRecord | None:
    """None where the cassette does not hold it. Raises `CassetteError`."""
    storage = SqliteStorage(cassette, read_only=True)
    try:
        question = storage.question(vote.reply_key)
        replies = [stored.reply.text for stored in storage.replies(vote.reply_key)]
    finally:
        storage.close()
    if question is None:
        return None
    return VoteRecord(
        model=question["model"],
        parameters=pretty_json(question["params"]),
        schema=pretty_json(question["schema"]),
        messages=_messages(question["messages"]),
        replies=replies,
    )


def _messages(text: str) -> list[tuple[str, str]]:
    try:
        found: Any = json.loads(text)
    except ValueError:
        return [("", text)]
    if not isinstance(found, list):
        return [("", pretty_json(found))]
    messages = [cast("dict[str, Any]", each) for each in cast("list[Any]", found) if isinstance(each, dict)]
    return [(str(message.get("role", "")), shown_text(message.get("content"))) for message in messages]
