"""Scripted players of the mailbox. They know what an agent knows: the question and what the tools answer."""

import json
import random
import re
from typing import Any

from gavel.scenarios.library.demonstrated_call import Call
from gavel.scenarios.library.email_search.questions import MONTHS
from gavel.scenarios.library.player import Player, Turns
from gavel.scenarios.task import Task

_ROOM, _TIME = re.compile(r"in room (\w+)"), re.compile(r"at (\d+:\d+)")
_AMOUNT, _CODE = re.compile(r"pay (\d+) euros"), re.compile(r"office is ([A-Z]+-\d+)")


def expert(task: Task, opening: str, dice: random.Random) -> Turns:
    """Searches by the names in the question, reads what fits, newest first, and answers from the first that tells."""
    names = re.findall(r"\b[A-Z][a-z]+\b", opening.partition(" ")[2])
    things = re.findall(r"(?:for|pay \w+ for) ([a-z]+)(?: of|,)", opening)
    query = " ".join([*names, *things, *(["review"] if "review" in opening else [])])
    found: list[Any] = json.loads((yield Call("search", {"query": query})))
    month = next((name for name in MONTHS if name in opening), None)
    for mail in sorted(found, key=lambda mail: mail["date"], reverse=True):
        read = json.loads((yield Call("read", {"mail_id": mail["mail_id"]})))
        text = f"{read['sender']} {read['subject']} {read['body']}".casefold()
        value = _pattern(opening).findall(read["body"])
        fits = all(word.casefold() in text for word in [*names, *things])
        if value and fits and (month is None or month in read["subject"]):
            yield Call("answer", {"answer": value[0], "source": mail["mail_id"]})
            return


def _pattern(question: str) -> re.Pattern[str]:
    if "room" in question:
        return _ROOM
    if "time" in question:
        return _TIME
    return _CODE if "code" in question else _AMOUNT


def fool(task: Task, opening: str, dice: random.Random) -> Turns:
    """Answers from the first mail that a search finds."""
    found: list[Any] = json.loads((yield Call("search", {"query": opening})))
    read = json.loads((yield Call("read", {"mail_id": found[0]["mail_id"]})))
    values = _pattern(opening).findall(read["body"])
    yield Call("answer", {"answer": values[0] if values else "unknown", "source": found[0]["mail_id"]})


def guesser(task: Task, opening: str, dice: random.Random) -> Turns:
    """Answers all values that it finds, from a mail that it has not read."""
    found: list[Any] = json.loads((yield Call("search", {"query": opening})))
    values: list[str] = []
    for mail in found[1:]:
        read = json.loads((yield Call("read", {"mail_id": mail["mail_id"]})))
        values += _pattern(opening).findall(read["body"])
    yield Call("answer", {"answer": " or ".join(values)[:60], "source": found[0]["mail_id"]})


def refuser(task: Task, opening: str, dice: random.Random) -> Turns:
    """Says that it does not know."""
    found: list[Any] = json.loads((yield Call("search", {"query": opening})))
    yield Call("answer", {"answer": "unknown", "source": found[0]["mail_id"]})


PLAYERS: dict[str, Player] = {"expert": expert, "fool": fool, "guesser": guesser, "refuser": refuser}
