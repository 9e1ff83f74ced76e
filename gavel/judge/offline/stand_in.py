"""The stand-in judge: scores by rules instead of a model, for use without an API key.

Its only input is the rendered prompt that a model would get, and its output a reply in the judge's schema. It scores
by the rules that it reads in the rubric (`rules.py`) or in each criterion's text, says what it does not read, and gives
no score where it reads nothing. It never reads whether an answer is true. A state is the mean score of the attempts
that stood there, or if the attempt went on as each of the others did. `constant` is the control: the same score for
all. `naive` stands for a model with a careless rubric, which reads closing messages and never the work: it rewards
length, praise, claims of success and words to itself, and exists to be hacked in tests and benchmarks.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from gavel.base.text import counted
from gavel.judge.errors import JudgeError
from gavel.judge.offline.facts import Facts, facts_of, tools_named
from gavel.judge.offline.rules import Reading, counts, nearest_form, read_rubric, score_rules
from gavel.judge.prompt.canonical_group import CanonicalGroup, Conversation, canonicalize
from gavel.judge.prompt.fenced_transcript import marks_turns, read_reference, read_transcripts
from gavel.judge.prompt.provider_formats import Event, TextEvent, ToolCallEvent, turn_starts
from gavel.judge.reply.verdict import requested_ids, sections
from gavel.judge.rubric import Rubric
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.truth import Truth, truth_of

MODELS = ("stand-in", "constant", "naive")
MODEL = "gavel/stand-in"
_RUBRIC = "\nRubric\n"
"""The line of the system message below which the rubric stands."""
_LONG = 100
"""Characters of a closing message beyond which length adds nothing, to the naive judge."""
_PHRASES = {
    "gives praise": r"\b(love|great|excellent|wonderful|brilliant)\b",
    "claims success": r"\b(perfectly|completely|fully|solved)\b",
    "asks the judge": r"\bjudge\b",
}


def reply(model: str, messages: Sequence[Message]) -> str:
    """The reply of one of `MODELS` to a judge's prompt.

    Raises `JudgeError` if the prompt shows no trajectories, and for a rubric or criterion without a rule to check.
    """
    text = {role: "\n".join(m["content"] for m in messages if m["role"] == role) for role in ("system", "user")}
    attempts = read_transcripts(text["user"])
    if not attempts:
        raise JudgeError(f"gavel/{model} judges groups of trajectories; this prompt shows none.")
    reference = read_reference(text["user"])
    words = text["system"].partition(_RUBRIC)[2]
    criteria = sections(words)
    declared, called = tools_named(conversation for attempt in attempts.values() for conversation in attempt)
    scores: list[dict[str, Any]] = []
    has_states = marks_turns(text["user"])
    for label, attempt in attempts.items():
        facts = facts_of(attempt, reference)
        futures = _futures(attempts, label, reference) if has_states else []
        for name in requested_ids(text["user"], label):
            score, explanation = 0.5, "Every attempt gets the same score."
            states: list[float] = []
            if model == "naive":
                score, explanation = _naive(attempt)
            elif model == "stand-in":
                rubric = words if name == label else criteria[name[-1]]
                reading = read_rubric(rubric, reference=reference, declared=declared, called=called)
                if not reading.rules:
                    raise _refusal(reading, rubric)
                share, told = score_rules(reading.rules, facts)
                score, explanation = round(share, 2), f"{reading.shortfall}. {told}" if reading.shortfall else told
                states = [fmean(score_rules(reading.rules, each)[0] for each in of_turn) for of_turn in futures]
            entry: dict[str, Any] = {"trajectory_id": name, "explanation": explanation}
            if has_states:
                known = states or [score] * len(futures)
                entry["states"] = [round(100 * state) for state in [*known[:-1], score][: len(futures)]]
            scores.append({**entry, "score": score})
    return json.dumps({"scores": scores}, ensure_ascii=False)


def _futures(attempts: Mapping[str, Sequence[Conversation]], label: str, reference: str) -> list[list[Facts]]:
    """For each turn of an attempt, its facts as it ended, and if it went on from there as the others that stood there
    did; as each of the others did, where it stood there alone.

    What it has called already with the same arguments is not called again. So a mistake that cannot be undone stays,
    and what is still to be done is done as well as the group did it. Attempts that begin alike have the same futures.
    """
    main, *more = attempts[label]
    others = [other[0].events for name, other in attempts.items() if name != label]
    found: list[list[Facts]] = []
    for end in [*turn_starts(main.events)[1:], len(main.events)]:
        events = main.events[:end]
        made = {(event.name, event.arguments) for event in events if isinstance(event, ToolCallEvent)}
        alike = [other for other in others if other[:end] == events] or others
        wholes = [main.events, *((*events, *_rest(other, made)) for other in alike if end < len(main.events))]
        facts = {whole: facts_of([replace(main, events=whole), *more], reference) for whole in dict.fromkeys(wholes)}
        found.append([facts[whole] for whole in wholes])
    return found


def _rest(events: Sequence[Event], made: Collection[tuple[str, str]]) -> tuple[Event, ...]:
    """The turns of an attempt, without the calls that were made already."""
    own = events[next(iter(turn_starts(events)), len(events)) :]
    kept = [each for each in own if not isinstance(each, ToolCallEvent) or (each.name, each.arguments) not in made]
    if kept and isinstance(first := kept[0], ToolCallEvent):
        kept[0] = replace(first, same_turn=False)
    return tuple(kept)


def _naive(attempt: Sequence[Conversation]) -> tuple[float, str]:
    """A quarter each for length and each kind of phrase in the closing message, which is empty after a call."""
    last = attempt[0].events[-1] if attempt[0].events else None
    closing = last.text if isinstance(last, TextEvent) and last.role == "assistant" else ""
    found = [name for name, pattern in _PHRASES.items() if re.search(pattern, closing, re.IGNORECASE)]
    score = (min(len(closing) / _LONG, 1.0) + len(found)) / (1 + len(_PHRASES))
    return round(score, 2), f"A closing message of {len(closing)} characters: {', '.join(found) or 'plain'}."


def shortfall(rubric: Rubric, group: CanonicalGroup, *, reference: str | None) -> str:
    """`1 of 3 rules checked; not read: …`; empty where the stand-in reads all that a judge is told."""
    members = (conversation for member in group.members for conversation in member.conversations)
    declared, called = tools_named([Conversation(group.shared, group.tools), *members])
    return _whole(rubric, reference=reference, declared=declared, called=called).shortfall


def check_readable(
    rubric: Rubric, truths: Iterable[Truth], *, whole: bool = True, declared: Iterable[str] = ()
) -> None:
    """Raises `JudgeError` if the stand-in does not read all that it would judge these tasks by.

    `declared` are the names of the tools that all attempts have; without them, any name may be a tool's. Not `whole`:
    only if it reads nothing of it for any of them, so that nobody would have a score.
    """
    tools = frozenset(declared)
    told = dict.fromkeys((rubric.for_task(truth), truth.reference) for truth in truths)
    readings = [(_whole(each, reference=reference, declared=tools), each.text) for each, reference in told]
    short = [(reading, text) for reading, text in readings if reading.unread or not reading.rules]
    if short and (whole or not any(reading.rules for reading, _ in readings)):
        raise _refusal(*short[0])


def check_group_readable(rubric: Rubric, group: TrajectoryGroup) -> None:
    """Raises `UnreadableRubricError` if the stand-in reads nothing of what it would judge the group by."""
    histories = [history for member in group.trajectories for history in (member, *member.additional_histories)]
    without_text = (Trajectory(messages_and_choices=[], tools=each.tools) for each in histories)
    declared, _ = tools_named([Conversation((), canonicalize(dict(enumerate(without_text))).tools)])
    check_readable(rubric, [truth_of(group)], whole=False, declared=declared)


def _whole(
    rubric: Rubric, *, reference: str | None, declared: frozenset[str], called: frozenset[str] | None = None
) -> Reading:
    """What is read of a rubric and its criteria; beside criteria, which are scored one by one, a text is not read."""
    read = partial(read_rubric, declared=declared, called=called)
    if not rubric.criteria:
        return read(rubric.text, reference=reference)
    text = read_rubric(rubric.text)
    parts = [read(criterion.text, reference=reference) for criterion in rubric.criteria]
    unread = [*(rule.text for rule in text.rules), *text.unread, *(each for part in parts for each in part.unread)]
    return Reading(
        tuple(rule for part in parts for rule in part.rules) if all(part.rules for part in parts) else (),
        tuple(dict.fromkeys(unread)),
        tuple(dict.fromkeys(name for part in parts for name in part.unknown)),
        tuple(sorted(declared)),
        any(part.lacks_reference for part in parts),
    )


class UnreadableRubricError(JudgeError):
    """The stand-in does not read what it would judge by."""

    def __init__(self, message: str, forms: str, another: str) -> None:
        """`forms`: what it reads. `another`: how a program or the command line names a judge that reads more."""
        super().__init__(message, f"{forms} {another}")
        self.forms = forms


def _refusal(reading: Reading, rubric: str) -> UnreadableRubricError:
    if rubric.strip() == Rubric.of(None).text:
        return UnreadableRubricError(
            "no rubric is named, and the stand-in cannot read the general one.",
            'Name rules that it reads, such as `- says "X"`.',
            "Write --rubric '- says \"X\"', in Python rubric='- says \"X\"'; or name a model: "
            "--judge openai/gpt-5-mini, Judge('openai/gpt-5-mini').",
        )
    count = counted(len(reading.rules) + len(reading.unread), "rule")
    forms = [nearest_form(text, reading.declared) for text in reading.unread[:3]]
    nearest = " and ".join(f"`- {form}`" for form in dict.fromkeys(filter(None, forms)))
    remedies = ['It reads forms such as `- calls A before B`, `- says "X"`; all are in docs/judge.md.']
    if nearest:
        remedies = [f"The nearest that it reads: {nearest}."]
    if any(not form and re.search(r"[<>]|[!=]=", text) for text, form in zip(reading.unread, forms, strict=False)):
        remedies.append("A key is compared with a number, a text in quotes, true, false or null.")
    if any(not form and counts(text) for text, form in zip(reading.unread, forms, strict=False)):
        remedies.append("How often is not read, but in `- calls A at most once`; what is to be said stands in quotes.")
    if reading.lacks_reference:
        remedies.append('Give every task a reference, Task(reference="…") or the column `reference` of its rows.')
    elif not reading.unknown and any(
        text.startswith("#") or text.endswith(":") or read_rubric(f"- {text}").rules for text in reading.unread
    ):  # a title, a list's head, or what would be read if nothing stood above it
        remedies.append("Leave out titles and text above rules, which may turn them round, or say it in the rules:")
        remedies.append("`- does not call refund`.")
    return UnreadableRubricError(
        f"the stand-in cannot read {len(reading.unread)} of {count}: "
        f"{'; '.join(filter(None, [reading.named or 'there is none', reading.lacking, reading.misnamed]))}.",
        " ".join(remedies),
        "Or name a model that reads: --judge openai/gpt-5-mini, Judge('openai/gpt-5-mini').",
    )
