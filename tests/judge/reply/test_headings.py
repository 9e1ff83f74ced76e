import re

import pytest

from gavel.judge.reply.headings import cleanly_introduced
from tests.judge.reply.malformed import HEADINGS

MENTION = re.compile(r"\b(?:K7QX|W3RT)\b")

CLEAN = [
    "",
    "\n\n",
    "Here are the scores:\n",
    "Here are the scores: ",
    "```json\n",
    "Sure!\n\n```\n",
    "I compared them.\n",
    "K7QX looked the order up before the refund.\n\n",
    "**Scores**\n",
    "**Analysis**\nK7QX is better.\n\n**Scores**\n",
    "## Reasoning\nK7QX is better.\n\nFinal scores:\n",
    "**Thinking**\nK7QX is better.\n\n**Final answer**\n",
    "### Trajectory K7QX\nGood.\n### Trajectory W3RT\nBad.\n\n",
    "Reasoning: K7QX is better, since it looked first.\n\n",
    "1. **K7QX**: looked first.\n2. **W3RT**: guessed.\n\n```json\n",
    "The final answer is ",
    "- ",
]
UNCLEAR = [
    "maybe ",
    "So K7QX is like ",
    "First guess:\n",
    "For example:\n",
    "If the refund had failed:\n",
    "Not my final answer: ",
    "Had it looked:\n",
    "> ",
    "(thinking of ",
    "Draft:\n```json\n",
    "**Thinking**\nK7QX is better.\n\n",
    "**Thinking**\nK7QX is better.\n\nScores:\n",
    "## Analysis\nK7QX is better.\n\n",
    "例如：\n",
]


@pytest.mark.parametrize("text", CLEAN)
def test_an_object_is_introduced_as_the_answer(text):
    assert cleanly_introduced(text, MENTION)


@pytest.mark.parametrize("text", UNCLEAR)
def test_an_object_is_not_clearly_the_answer(text):
    assert not cleanly_introduced(text, MENTION)


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_heading_of_thoughts_holds_until_another_one(heading):
    assert not cleanly_introduced(f"{heading}K7QX is better.\n\n", MENTION)
    assert cleanly_introduced(f"{heading}K7QX is better.\n\n**Final answer**\n", MENTION)
