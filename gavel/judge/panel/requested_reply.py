"""Forms of reply: what a prompt asks a judge model for, and how its scores are read.

A mode names its form. `Words` is JSON with an explanation and a score for each member; `Questions` puts one score
question for each member to a decision model; `Digits` asks for one digit for each member and reads its probabilities.
All of them show the same transcripts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from gavel.judge.prompt.call_prompt import template_names, with_request
from gavel.judge.prompt.sanitize import sanitize
from gavel.judge.reply import readout
from gavel.judge.reply.criteria import ids_to_score, read_scores
from gavel.judge.reply.distribution import read_decisions
from gavel.judge.reply.verdict import Verdict, reply_schema
from gavel.judge.rubric import Rubric
from gavel.llm.decisions import MOST_LEVELS, MOST_QUESTIONS, score_question
from gavel.llm.response import LOGPROBS as PARAMS
from gavel.llm.types import Message, Schema, Wire
from gavel.prompts import render


class ReplyForm(Protocol):
    """What is asked for besides the transcripts, and how it is read."""

    wire: ClassVar[Wire]
    params: ClassVar[Mapping[str, Any]]
    """LiteLLM parameters that it takes."""
    can_be_repaired: ClassVar[bool]
    """Whether an unusable reply is sent back with its problem."""
    most_scores: ClassVar[int | None]
    """Of one call; None = as many as fit."""

    def templates(self, rubric: Rubric) -> Sequence[str]: ...

    def prompt(self, messages: list[Message], rubric: Rubric, labels: Sequence[str]) -> list[Message]:
        """The messages of a call, from those that ask for words."""
        ...

    def schema(self, rubric: Rubric, labels: Sequence[str]) -> Schema: ...

    def read(self, reply: str, rubric: Rubric, labels: Sequence[str], *, cut_off: bool) -> Verdict:
        """Raises `VerdictError` for a reply without a score that can be used."""
        ...


@dataclass(frozen=True, slots=True)
class Words:
    wire: ClassVar[Wire] = "chat"
    can_be_repaired: ClassVar[bool] = True
    most_scores: ClassVar[int | None] = None
    params: ClassVar[Mapping[str, Any]] = {}

    def templates(self, rubric: Rubric) -> Sequence[str]:
        return template_names(rubric)

    def prompt(self, messages: list[Message], rubric: Rubric, labels: Sequence[str]) -> list[Message]:
        return messages

    def schema(self, rubric: Rubric, labels: Sequence[str]) -> Schema:
        return reply_schema(ids_to_score(rubric, labels))

    def read(self, reply: str, rubric: Rubric, labels: Sequence[str], *, cut_off: bool) -> Verdict:
        return read_scores(reply, rubric, labels, cut_off=cut_off)


@dataclass(frozen=True, slots=True)
class Questions:
    wire: ClassVar[Wire] = "decisions"
    can_be_repaired: ClassVar[bool] = False
    most_scores: ClassVar[int | None] = MOST_QUESTIONS
    params: ClassVar[Mapping[str, Any]] = {}

    def templates(self, rubric: Rubric) -> Sequence[str]:
        return template_names(rubric)[0], "judge/decision.j2"

    def prompt(self, messages: list[Message], rubric: Rubric, labels: Sequence[str]) -> list[Message]:
        return _rewritten(messages, MOST_LEVELS - 1, "")

    def schema(self, rubric: Rubric, labels: Sequence[str]) -> Schema:
        highest = MOST_LEVELS - 1
        levels = ["0 (worst)", *map(str, range(1, highest)), f"{highest} (best)"]
        criteria = [(letter, sanitize(criterion.name)) for letter, criterion in rubric.lettered] or [("", "")]
        questions = [
            score_question(
                label + letter,
                render("judge/decision.j2", label=label, letter=letter, criterion=name).strip(),
                levels,
            )
            for letter, name in criteria
            for label in labels
        ]
        return {"questions": questions}

    def read(self, reply: str, rubric: Rubric, labels: Sequence[str], *, cut_off: bool) -> Verdict:
        return read_decisions(reply, rubric, labels, MOST_LEVELS)


@dataclass(frozen=True, slots=True)
class Digits:
    wire: ClassVar[Wire] = "logprobs"
    can_be_repaired: ClassVar[bool] = False
    most_scores: ClassVar[int | None] = None
    params: ClassVar[Mapping[str, Any]] = PARAMS

    def templates(self, rubric: Rubric) -> Sequence[str]:
        return template_names(rubric)[0], "judge/readout.j2"

    def prompt(self, messages: list[Message], rubric: Rubric, labels: Sequence[str]) -> list[Message]:
        highest = readout.LEVELS - 1
        criteria = [(letter, sanitize(criterion.name)) for letter, criterion in rubric.lettered]
        ids = ids_to_score(rubric, labels)
        request = render("judge/readout.j2", ids=ids, highest=highest, criteria=criteria)
        return _rewritten(messages, highest, request)

    def schema(self, rubric: Rubric, labels: Sequence[str]) -> Schema:
        digit = {"type": "integer", "enum": list(range(readout.LEVELS))}
        ids = ids_to_score(rubric, labels)
        return {
            "type": "object",
            "properties": dict.fromkeys(ids, digit),
            "required": ids,
            "additionalProperties": False,
        }

    def read(self, reply: str, rubric: Rubric, labels: Sequence[str], *, cut_off: bool) -> Verdict:
        return readout.read_readout(reply, rubric, labels)


_FOR_DIGITS = {
    "from 0 (worst) to 1 (best)": "from 0 (worst) to {highest} (best)",
    "Write the explanation first, one or two sentences about what decided the score, then the score.": (
        "Give the score alone, as one digit, without an explanation."
    ),
}
"""What the system message says of scores in words, and of digits."""


def _rewritten(messages: list[Message], highest: int, request: str) -> list[Message]:
    """The messages with the transcripts as they are, on another scale and with another request after them."""
    system, user = messages
    rules: str = system["content"]
    for words, digits in _FOR_DIGITS.items():
        before, found, after = rules.partition(words)  # the first: the rubric, which may say the same, comes last
        assert found, words
        rules = before + digits.format(highest=highest) + after
    content = user["content"]
    if isinstance(content, str):
        shown: Any = with_request(content, request)
    else:
        first, *images = content
        shown = [{**first, "text": with_request(first["text"], request)}, *images]
    return [{**system, "content": rules}, {**user, "content": shown}]
