"""The stand-in judge: scores by rules instead of a model, for use without an API key.

Its only input is the rendered prompt that a model would get, and its output a reply in the judge's schema. It scores
by the rules that it understands in the rubric (`rules.py`) or in each criterion's text, and gives no score where there
is none. It never reads whether an answer is true. `constant` is the control: the same score for all.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from gavel.judge.errors import JudgeError
from gavel.judge.offline.facts import facts_of
from gavel.judge.offline.rules import Rule, read_rules, score_rules
from gavel.judge.prompt.canonical_group import Conversation
from gavel.judge.prompt.fenced_transcript import read_transcripts
from gavel.judge.reply.criteria import requested_ids, sections
from gavel.judge.rubric import Rubric
from gavel.llm.types import Message
from gavel.scenarios.truth import Truth

MODELS = ("stand-in", "constant")

Attempt = Sequence[Conversation]


def reply(model: str, messages: Sequence[Message]) -> str:
    """The reply of one of `MODELS` to a judge's prompt.

    Raises `JudgeError` if the prompt shows no trajectories, and for a rubric or criterion without a rule to check.
    """
    text = {role: "\n".join(m["content"] for m in messages if m["role"] == role) for role in ("system", "user")}
    attempts = read_transcripts(text["user"])
    if not attempts:
        raise JudgeError(f"gavel/{model} judges groups of trajectories; this prompt shows none.")
    criteria = sections(text["system"])
    scores: list[dict[str, Any]] = []
    for label, attempt in attempts.items():
        for name in requested_ids(text["user"], label):
            score, explanation = 0.5, "Every attempt gets the same score."
            if model == "stand-in":
                whole = name == label
                rubric, where = (text["system"], "") if whole else (criteria[name[-1]], f" in criterion {name[-1]}")
                score, explanation = _verdict(attempt, _rules(rubric, where))
            scores.append({"trajectory_id": name, "explanation": explanation, "score": score})
    return json.dumps({"scores": scores}, ensure_ascii=False)


def check_rubric(rubric: Rubric) -> None:
    """Raises `JudgeError` for a rubric by which the stand-in cannot score: nobody would have a score."""
    if not rubric.criteria:
        _rules(rubric.text, "")
    for letter, criterion in rubric.lettered:
        _rules(criterion.text, f" in criterion {letter}")


def check_tasks(rubric: Rubric, truths: Iterable[Truth]) -> None:
    """`check_rubric` for the rubric of each of a scenario's tasks: its own, or the scenario's."""
    for each in dict.fromkeys(rubric.for_task(truth) for truth in truths):
        check_rubric(each)


def _verdict(attempt: Attempt, rules: Sequence[Rule]) -> tuple[float, str]:
    share, broken = score_rules(rules, facts_of(attempt))
    return round(share, 2), f"Not kept: {'; '.join(broken)}." if broken else "It keeps every rule."


def _rules(rubric: str, criterion: str) -> Sequence[Rule]:
    rules = read_rules(rubric)
    if not rules:
        raise JudgeError(
            f"no written rule to check{criterion}: the stand-in scores only by rules such as `- calls A before B`.",
            "Write such rules, or name a judge model: --judge openai/gpt-5-mini, Judge('openai/gpt-5-mini').",
        )
    return rules
