"""Exports trajectories to a file in another program's format, or to an OTLP endpoint.

    told = export_file(stored, "agenttraj", Path("explored.jsonl"))
    told.summary       # "wrote 1,600 attempts of 200 groups as AgentTraj conversations to explored.jsonl"
    told.notes         # ["left out or changed: 3 × …"]

A file appears once it is complete, and nothing is overwritten. Groups are written one at a time, so that an export may
exceed memory.

Of judged groups are written preference pairs for DPO (`preference_pairs`) and conversations for SFT
(`best_conversations`): `{"messages": [{…}], "tools": "[…]", "score": 0.9}`. What was read from a rendered text
prompt is written as text: `{"prompt": "…", "completion": "…", "score": 0.9}`.
"""

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, takewhile
from pathlib import Path

from gavel.base import entry_points
from gavel.base.errors import GavelError
from gavel.base.files import replacing
from gavel.base.text import counted
from gavel.llm.types import Message
from gavel.scenarios.formats import otel
from gavel.scenarios.formats.chat import is_bookkeeping
from gavel.scenarios.formats.exported import (
    Call,
    Export,
    Losses,
    StoredAttempt,
    StoredGroup,
    Turn,
    attempts,
    tool_definitions,
    turns,
)
from gavel.scenarios.formats.otel import OtlpEndpoint
from gavel.scenarios.formats.text import is_rendered
from gavel.scenarios.group import TrajectoryGroup

MARGIN = 0.1
"""Default of the smallest difference that makes a preference pair."""
_JUDGE = "gavel score FILE --judge MODEL --out judged.jsonl"
_NOTHING = {
    "dpo": f"Judge the file, with more --orders for surer scores: {_JUDGE}; or take a smaller --margin.",
    "sft": f"Name a score that is good enough: --above 0.5. Judge a file without scores first: {_JUDGE}.",
}


def _load_formats(margin: float = 0.0, above: float | None = None) -> dict[str, Export]:
    """All formats by name, those of integrations last. Raises `ExportError` if two share a name."""
    lines = (".jsonl",)
    found = {
        "dpo": Export("preference pairs", lines, lambda groups, _, losses: preference_pairs(groups, losses, margin)),
        "sft": Export(
            "conversations for SFT", lines, lambda groups, _, losses: best_conversations(groups, losses, above)
        ),
        "otel": Export("OpenTelemetry spans", lines, partial(otel.requests, now_ns=time.time_ns())),
    }
    for module in entry_points.load_all("gavel.formats"):
        for form, export in getattr(module, "EXPORTS", {}).items():
            if form in found:
                remedy = f"Uninstall the distribution of {module.__name__}."
                raise ExportError(f"two formats are called {form!r}.", remedy)
            found[form] = export
    return found


def export_formats() -> list[str]:
    return list(_load_formats())


class ExportError(GavelError):
    """Trajectories cannot be exported."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Summary of an export."""

    summary: str
    notes: list[str]


def stored_groups(groups: Iterable[TrajectoryGroup]) -> Iterator[StoredGroup]:
    """The groups of a file, in the form that is exported."""
    for index, group in enumerate(groups):
        yield StoredGroup(group, index)


def export_file(
    groups: Iterable[StoredGroup],
    form: str,
    out: str | Path,
    *,
    model: str | None = None,
    margin: float = MARGIN,
    above: float | None = None,
) -> Exported:
    """Writes all attempts. `out`: a file, or for `otel` the http address of a collector.

    `model`: the policy's name, if known. `margin`: for `dpo`, the min difference of two
    scores that is a preference; `above`: for `sft`, the threshold that a conversation's score must exceed. Raises
    `ExportError`.
    """
    formats = _load_formats(margin, above)
    if form not in formats:
        raise ExportError(f"there is no format {form!r} to export to.", f"There are: {', '.join(formats)}.")
    export = formats[form]
    losses, sizes = Losses(), list[int]()

    def passing() -> Iterator[StoredGroup]:
        for stored in groups:
            sizes.append(len(stored.group))
            yield stored

    address = str(out) if str(out).startswith(("http://", "https://")) else None
    if address is not None and form != "otel":
        raise ExportError(f"{address} is an address, and {export.title} are files.", "Give -o the name of a file.")
    if address is not None:
        with OtlpEndpoint(address) as endpoint:
            for request in export.documents(passing(), model, losses):
                endpoint.send(request)
    else:
        path = Path(out)
        _check_name(path, export)
        _write(path, export.documents(passing(), model, losses))
        if form in ("dpo", "sft") and losses.groups == len(sizes):
            path.unlink()
            raise ExportError(f"nothing to write as {export.title}: {'; '.join(losses.notes())}.", _NOTHING[form])
    attempts = counted(sum(sizes) - losses.attempts, "attempt")
    written = counted(len(sizes) - losses.groups, "group")
    summary = f"wrote {attempts} of {written} as {export.title} to {out}"
    return Exported(summary, [f"left out or changed: {note}" for note in losses.notes()])


def _check_name(path: Path, export: Export) -> None:
    if path.exists() or path.is_symlink():
        raise ExportError(f"{path} exists already.", "Give another -o; nothing is written over.")
    if path.suffix not in export.suffixes:
        ways = " or ".join(export.suffixes)
        raise ExportError(f"{export.title} cannot be written to {path}.", f"Give -o a file that ends in {ways}.")


def _write(path: Path, documents: Iterable[Message]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished, unfinished.open("w", encoding="utf-8") as stream:
            for each in documents:
                stream.write(f"{json.dumps(each, ensure_ascii=False, allow_nan=False, separators=(',', ':'))}\n")
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror or error}", "Give another -o.") from error


Z = 2.0
"""Number of standard errors by which two scores must differ to be a preference."""


def preference_pairs(stored: Iterable[StoredGroup], losses: Losses, margin: float) -> Iterator[Message]:
    """TRL's DPO rows: of each group the two members whose scores differ most, and significantly.

    Significantly means by at least `margin`, and by more than twice the standard error of the difference. The prompt is
    the messages that both members begin with. Groups without such a pair, and members without a score, are counted.
    """
    for each in stored:
        scored = _scored(each, losses)
        said = [(attempt, found) for attempt in scored if (found := _conversation(attempt, losses))]
        clear = [pair for pair in combinations(said, 2) if _is_clear(pair[0][0], pair[1][0], margin)]
        clear.sort(key=lambda pair: _reward(pair[1][0]) - _reward(pair[0][0]))
        row = next((row for better, worse in clear if (row := _make_pair(*better, *worse, losses)) is not None), None)
        losses.attempts += len(scored) - (2 if row else 0)
        if row:
            yield row
            continue
        losses.groups += 1
        why = "whose members answer no common prompt, or alike"
        if not clear:
            why = f"of which no two scores differ by {margin:g} and twice their standard error"
        losses.add(f"group {why}: left out")


def best_conversations(stored: Iterable[StoredGroup], losses: Losses, above: float | None) -> Iterator[Message]:
    """TRL's SFT rows: the best member of each group, the first of equals; with a threshold each member above it.

    Scores are relative, so without a threshold a group with equal scores has no best member.
    """
    for each in stored:
        scored = _scored(each, losses)
        whole = [attempt for attempt in scored if attempt.trajectory.status != "truncated"]
        losses.add("truncated member: left out", len(scored) - len(whole))
        best = whole[:1] if whole and _reward(whole[0]) > _reward(whole[-1]) else []
        chosen = best if above is None else [attempt for attempt in whole if _reward(attempt) > above]
        if above is not None:
            losses.add(f"member whose score is not above {above:g}: left out", len(whole) - len(chosen))
        elif whole and not best:
            losses.add("group whose members score alike: left out (--above takes those that score more)")
        rows = [(attempt, said) for attempt in chosen if (said := _conversation(attempt, losses))]
        losses.attempts += len(scored) - len(rows)
        losses.groups += not rows
        for attempt, said in rows:
            if _is_text(said):
                row = {"prompt": said[0]["content"], "completion": said[1]["content"]}
            else:
                row = {"messages": said, **_tools(attempt, losses)}
            yield {**row, "score": _reward(attempt)}


def _scored(stored: StoredGroup, losses: Losses) -> list[StoredAttempt]:
    """The members with a score, the best first."""
    members = list(attempts(stored))
    scored = [each for each in members if each.reward is not None and each.trajectory.status != "failed"]
    losses.add("member without a score: left out", len(members) - len(scored))
    losses.attempts += len(members) - len(scored)
    return sorted(scored, key=_reward, reverse=True)


def _reward(attempt: StoredAttempt) -> float:
    return attempt.reward or 0.0


def _is_clear(better: StoredAttempt, worse: StoredAttempt, margin: float) -> bool:
    judged = [each.trajectory.judgement for each in (better, worse)]
    error = math.hypot(*((each and each.standard_error) or 0.0 for each in judged))
    difference = _reward(better) - _reward(worse)
    return difference > Z * error and difference >= margin - 1e-9


def _make_pair(
    better: StoredAttempt, chosen: list[Message], worse: StoredAttempt, rejected: list[Message], losses: Losses
) -> Message | None:
    """The row; None if the members begin with different messages, or are equal."""
    shared = list(takewhile(lambda pair: _said(pair[0]) == _said(pair[1]), zip(chosen, rejected, strict=False)))
    ends = range(min(len(shared), len(chosen) - 1, len(rejected) - 1), 0, -1)
    end = next((n for n in ends if chosen[n]["role"] == rejected[n]["role"] == "assistant"), 0)
    if end == 0 or chosen[end - 1]["role"] not in ("user", "tool") or len(shared) == len(chosen) == len(rejected):
        return None
    if any(message["role"] == "tool" for message in (*chosen[end:], *rejected[end:])):
        losses.add("pair with results of tools inside its answers: kept; DPO in TRL does not mask them")
    scores = {"score_chosen": _reward(better), "score_rejected": _reward(worse)}
    if _is_text(chosen) and _is_text(rejected):
        sides = {"chosen": chosen[1]["content"], "rejected": rejected[1]["content"]}
        return {"prompt": chosen[0]["content"], **sides, **scores}
    sides = {"prompt": chosen[:end], "chosen": chosen[end:], "rejected": rejected[end:]}
    return {**sides, **_tools(better, losses), **scores}


def _is_text(messages: Sequence[Message]) -> bool:
    """Whether it is a prompt rendered by a chat template, and its completion: as messages, TRL would render it
    again."""
    roles = [message["role"] for message in messages]
    return roles == ["user", "assistant"] and is_rendered(messages[0]["content"]) and messages[1].keys() <= _PLAIN


_PLAIN = {"role", "content"}


def _said(message: Message) -> Message:
    """The message without the ids of its calls, which differ between otherwise equal attempts."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return {**message, "tool_calls": calls, "tool_call_id": None}


def _conversation(attempt: StoredAttempt, losses: Losses) -> list[Message]:
    """The messages up to the last assistant turn; none if they hold more than text, or no such turn."""
    main, *further = attempt.trajectory.histories()
    losses.add("further history of an attempt: left out", len(further))
    found = turns(main, losses)
    while found and found[-1].role != "assistant":
        del found[-1]
    if not found or not all(turn.is_text for turn in found):
        losses.add("attempt with images or recordings, or without an answer: left out")
        return []
    return [_message(turn, losses) for turn in found]


def _message(turn: Turn, losses: Losses) -> Message:
    if any(not is_bookkeeping(name, value) for name, value in turn.rest.items()):
        losses.add("message with fields that these rows do not have: written without them")
    message: Message = {"role": turn.role, "content": losses.text(turn.text)}
    if turn.calls:
        message["tool_calls"] = [_call(call, losses) for call in turn.calls]
    given = {"reasoning_content": turn.reasoning or None, "tool_call_id": turn.call_id, "name": turn.name or None}
    return message | {name: losses.text(text) for name, text in given.items() if text is not None}


def _call(call: Call, losses: Losses) -> Message:
    """The call with its arguments as an object: chat templates write text as a JSON string."""
    if call.values is None:
        losses.add("tool call whose arguments are no JSON object: kept as text")
    arguments = losses.text(call.arguments) if call.values is None else call.values
    function = {"name": losses.text(call.name), "arguments": arguments}
    return {**({"id": losses.text(call.id)} if call.id else {}), "type": "function", "function": function}


def _tools(attempt: StoredAttempt, losses: Losses) -> Message:
    """The tools as JSON text, which TRL reads: a table would give each tool the fields of the others."""
    found = tool_definitions(attempt.trajectory.histories()[0], losses)
    return {"tools": json.dumps(found, ensure_ascii=False)} if found else {}
