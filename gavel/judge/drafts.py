"""Drafts by a language model: a rubric from a task's description, and criteria for one task from attempts at it.

    rubric = await draft_rubric(client, "The agent runs a returns desk.")
    task.criteria = await draft_criteria(task, attempts, "openai/gpt-5-mini")

What is drafted is valid or an error: a reply is read by the rules of a rubric file, and an invalid one goes back to the
model with the reason, a limited number of times. Criteria are kept where they tell the attempts apart:

1. The model reads the attempts and writes criteria.
2. A judge scores the attempts by all of them, in balanced orders.
3. Criteria by which the attempts differ no more than by chance are dropped.
4. Criteria that score all attempts the same are merged; their weights add up.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from statistics import fmean, pstdev, stdev, variance
from typing import Any, TypeVar, cast

from gavel.judge.errors import JudgeError, llm_errors_as_judge_errors
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Models
from gavel.judge.panel.modes import LARGEST_WHOLE
from gavel.judge.prompt.call_prompt import GroupPrompts
from gavel.judge.prompt.canonical_group import CanonicalGroup, canonicalize, has_reference, with_reference
from gavel.judge.prompt.fenced_transcript import draw_markers
from gavel.judge.prompt.flags import with_flags
from gavel.judge.prompt.sanitize import sanitize
from gavel.judge.reply.lenient_json import Broken, find_value
from gavel.judge.rubric import Criterion, Rubric
from gavel.llm.client import Client
from gavel.llm.types import Message, Reply, Schema, text_of
from gavel.prompts import render
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.truth import KEY, Truth

_T = TypeVar("_T")

LONGEST = 4000
"""Max characters of a draft: every call of the judge that uses it pays for them."""
MOST_CRITERIA = 10
_REPAIRS = 2
"""Max repair requests after an invalid reply."""
_MIN_SPREAD = 0.05
"""Standard deviation of the attempts' scores, below which a criterion tells nothing."""
_ABOVE_NOISE = 2.0
"""Least standard deviation over the attempts, in standard errors of one attempt's score."""
_SAME_SCORES = 0.05
"""Root mean square of the differences up to which two criteria score the same."""


class DraftError(JudgeError):
    """The reply is not what was asked for; the message, which is shown to the model, says why."""


async def ask_for(client: Client, prompt: list[Message], schema: Schema, read: Callable[[str], _T], *, noun: str) -> _T:
    """The result of `read` for the model's reply; it raises `DraftError` for an invalid one.

    `noun`: what the model writes, for errors. Raises `DraftError` when the last reply is invalid too, and `JudgeError`
    when the model cannot be asked.
    """
    check_can_write(client, noun)
    repair: list[Message] = []
    unusable: list[tuple[list[Message], Reply]] = []
    problem = ""

    def problem_of(reply: Reply) -> str:
        try:
            read(reply.text)
        except DraftError as error:
            return error.message.removesuffix(".")
        return ""

    for _ in range(1 + _REPAIRS):
        with llm_errors_as_judge_errors():
            reply = await client.ask(prompt + repair, schema, lambda reply: not problem_of(reply), unusable)
        if not (problem := problem_of(reply)):
            return read(reply.text)
        unusable.append((prompt + repair, reply))
        repair = [
            {"role": "assistant", "content": reply.text.strip() or "(no reply)"},
            {"role": "user", "content": render("judge/draft_repair.j2", problem=problem)},
        ]
    raise DraftError(
        f"{client.name} drafted no {noun.removeprefix('a ')}: {problem}.",
        "Try again, or with another model: --model MODEL.",
    )


def check_can_write(client: Client, noun: str) -> None:
    """Raises `JudgeError` for a model that cannot write `noun`, or cannot be asked."""
    if client.name.startswith("gavel/"):
        raise JudgeError(
            f"{client.name} goes by rules and cannot draft {noun}.",
            "Name a model that can write, with --model or GAVEL_JUDGE_MODEL: openai/gpt-5-mini, ollama/qwen3.",
        )
    with llm_errors_as_judge_errors():
        client.check()


def read_object(reply: str) -> dict[str, Any]:
    """The JSON object that a reply is. Raises `DraftError`."""
    try:
        value = find_value(reply).value
    except Broken as broken:
        raise DraftError(str(broken)) from broken
    if not isinstance(value, dict):
        raise DraftError("it is no JSON object")
    return cast("dict[str, Any]", value)


async def draft_rubric(client: Client, description: str, *, criteria: bool = False) -> Rubric:
    """A rubric for the job that `description` describes: a text, or with `criteria` weighted criteria.

    Raises `DraftError` when the last reply is invalid too, and `JudgeError` when the description is empty or the model
    cannot be asked.
    """
    if not description.strip():
        raise JudgeError("there is no description of the task.", "Say in a sentence or more what the agent's job is.")
    text = render("judge/draft_rubric.j2", description=sanitize(description.strip()), criteria=criteria)
    return await _ask_for_rubric(client, [{"role": "user", "content": text}], criteria)


async def _ask_for_rubric(client: Client, prompt: list[Message], criteria: bool) -> Rubric:
    schema = schema_object({"criteria": CRITERIA} if criteria else {"text": {"type": "string"}})
    return await ask_for(client, prompt, schema, lambda reply: read_draft(reply, criteria=criteria), noun="a rubric")


def schema_object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


CRITERIA: Schema = {
    "type": "array",
    "items": schema_object({"name": {"type": "string"}, "text": {"type": "string"}, "weight": {"type": "number"}}),
}


def read_draft(reply: str, *, criteria: bool) -> Rubric:
    """The rubric in a reply, its last JSON object. Raises `DraftError`."""
    value = read_object(reply)
    try:
        rubric = Rubric.of(sanitize(json.dumps(value, ensure_ascii=False, default=lambda _: None)))
    except JudgeError as error:
        raise DraftError(error.message) from error
    if criteria and not 2 <= len(rubric.criteria) <= MOST_CRITERIA:
        raise DraftError(f"it has {len(rubric.criteria)} criteria, not 2 to {MOST_CRITERIA}")
    if not criteria and (rubric.criteria or not rubric.text):
        raise DraftError("it has criteria where a text was asked for")
    if len(rubric.words) > LONGEST:
        raise DraftError(f"it is {len(rubric.words):,} characters long, and {LONGEST:,} are the most")
    return rubric


async def draft_criteria(
    task: Task | str,
    attempts: TrajectoryGroup | Iterable[Trajectory],
    model: Models | None = None,
    **options: Any,
) -> list[Criterion]:
    """Criteria that tell the attempts at a task apart, the most telling first; empty when none does.

    `model`: who writes (the first of a jury) and who scores, as for `Judge`; None = `GAVEL_JUDGE_MODEL`. `options`: of
    the judge; with one order nobody knows how far scores differ by chance, and only a spread is asked for.

    Raises `JudgeError` when the model cannot be asked, drafts no criteria, or scores nobody by them.
    """
    ended = await attempts if isinstance(attempts, TrajectoryGroup) and attempts.pending else attempts
    shown = [trajectory for trajectory in ended if trajectory.status != "failed"]
    task = Task(user=task) if isinstance(task, str) else task
    judge = Judge(model, **options)
    writer = judge.writer
    group = with_flags(canonicalize(dict(enumerate(shown))))
    if len(group.members) < 2:
        return []
    group = with_reference(group, task.truth.reference)
    prompt = transcripts_with_request(
        writer,
        group,
        render("judge/draft_criteria_system.j2", reference=has_reference(group)),
        render("judge/draft_criteria.j2", task=sanitize(task.user.strip()), most=MOST_CRITERIA - 2),
    )
    drafted = await _ask_for_rubric(writer, prompt, True)
    metadata = {KEY: Truth(reference=task.truth.reference).dump()}
    alike = [trajectory.model_copy(update={"metadata": {}}) for trajectory in shown]
    judged = await judge.with_rubric(drafted).score(TrajectoryGroup(alike, metadata=metadata))
    scored = [(criterion, *_means_and_noise(criterion.name, judged)) for criterion in drafted.criteria]
    if any(len(means) < 2 for _, means, _ in scored):
        reason = judged.judgement.reason if judged.judgement else ""
        raise JudgeError(f"no criteria can be kept: the judge scored too few attempts: {reason}")
    telling = [
        (stdev(means), criterion, means)
        for criterion, means, noise in scored
        if stdev(means) >= max(_MIN_SPREAD, _ABOVE_NOISE * noise)
    ]
    kept: list[tuple[Criterion, list[float]]] = []
    for _, criterion, means in sorted(telling, key=lambda each: each[0], reverse=True):
        for number, (first, others) in enumerate(kept):
            if pstdev([one - other for one, other in zip(means, others, strict=True)]) <= _SAME_SCORES:
                kept[number] = replace(first, weight=first.weight + criterion.weight), others
                break
        else:
            kept.append((criterion, means))
    return [criterion for criterion, _ in kept]


def transcripts_with_request(client: Client, group: CanonicalGroup, system: str, request: str) -> list[Message]:
    """A prompt that shows up to `LARGEST_WHOLE` members, fenced and in random order, and asks about them."""
    dice = Random(group.digest)
    order = dice.sample(range(len(group.members)), min(len(group.members), LARGEST_WHOLE))
    prompts = GroupPrompts(group, draw_markers(group, dice), Rubric.of(None), lambda labels, turns: request.strip())
    shown = text_of(prompts.fit(order, client.room(MOST_CRITERIA)).messages[-1])
    return [{"role": "system", "content": system.strip()}, {"role": "user", "content": shown}]


def _means_and_noise(criterion: str, judged: TrajectoryGroup) -> tuple[list[float], float]:
    """Each attempt's mean score by a criterion, and the standard error of such a mean, 0 where it is not known.

    What an order gives to all attempts alike is no noise.
    """
    votes = [
        {vote.order: vote.criteria[criterion] for vote in trajectory.judgement.votes}
        for trajectory in judged
        if trajectory.judgement and trajectory.judgement.votes
    ]
    orders = {order: fmean(one[order] for one in votes if order in one) for one in votes for order in one}
    centred = [[score - orders[order] for order, score in one.items()] for one in votes]
    errors = [variance(scores) / len(scores) for scores in centred if len(scores) > 1]
    lost = len(votes) / (len(votes) - 1) if len(votes) > 1 else 1.0  # by taking out the means of the orders
    return [fmean(one.values()) for one in votes], math.sqrt(fmean(errors) * lost) if errors else 0.0
