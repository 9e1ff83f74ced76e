"""Langfuse's exports: traces, observations, or one trace with its observations; from the UI, the API or blob storage.

    {"id": "t1", "name": "desk", "input": …, "output": …, "scores": [{"name": "correct", "value": 1}]}
    {"id": "o1", "traceId": "t1", "type": "GENERATION", "startTime": …, "input": [{…}], "output": {…}}

A trace is an attempt. Where there are generations, its conversation is that of the last one, which repeats those before
it; conversations that none repeats (of sub-agents) are additional histories.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats import payloads
from gavel.scenarios.formats.checks import INDEPENDENT, first_line, trajectory
from gavel.scenarios.formats.row import Attempt, Format, Row, Source, is_list, is_object
from gavel.scenarios.trajectory import History, MessageOrChoice

_KEPT = (
    "name",
    "userId",
    "user_id",
    "sessionId",
    "session_id",
    "metadata",
    "tags",
    "environment",
    "version",
    "release",
)
_TRACE_IDS = ("traceId", "trace_id")


def _read(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    traces: dict[Any, list[Row]] = {}
    known: Counter[Any] = Counter()
    for row in rows:
        name = _trace_id(row.value)
        if not _is_observation(row.value):
            known[name] += 1
        key = name if known[name] < 2 else f"{name} ({known[name]})"  # rows of other programs may share an id
        traces.setdefault(key, []).append(row)
    for name, records in traces.items():
        whole, observations = _records(records)
        found = _histories(whole, observations, records[0].where)
        if not found:
            source.left_out["trace without input and output"] += 1
            continue
        (said, tools), *others = found
        fields: dict[str, Any] = {key: whole[key] for key in _KEPT if whole.get(key) is not None} | {"trace_id": name}
        metrics = _scores(whole)
        histories = [History(messages_and_choices=list[MessageOrChoice](m), tools=t) for m, t in others]
        place, ended = records[0].where, _ended(whole, observations, said)
        attempt = trajectory(
            said, place, tools=tools, fields=fields, metrics=metrics, additional_histories=histories, **ended
        )
        yield Attempt(attempt, records[0], LANGFUSE.name)


def _trace_id(record: Message) -> Any:
    inner = record.get("trace")
    if is_object(inner):
        return inner.get("id")
    return next((record[name] for name in _TRACE_IDS if record.get(name)), record.get("id"))


def _is_observation(record: Message) -> bool:
    return any(record.get(name) for name in _TRACE_IDS) and "type" in record


def _records(rows: Sequence[Row]) -> tuple[Message, list[Message]]:
    """The trace's own record (or else its root observation), and its observations in order of time."""
    whole: Message = {}
    observations: list[Message] = []
    for row in rows:
        record: Message = row.value
        trace = record["trace"] if is_object(record.get("trace")) else record
        inner = record.get("observations")
        if is_list(inner):
            observations += [each for each in inner if is_object(each)]
        if _is_observation(record):
            observations.append(record)
        else:
            whole = trace
    observations.sort(key=lambda each: str(_either(each, "startTime", "start_time") or ""))
    roots = [each for each in observations if not _either(each, "parentObservationId", "parent_observation_id")]
    return whole or (roots or observations)[0], observations


def _either(record: Message, *names: str) -> Any:
    return next((record[name] for name in names if record.get(name) is not None), None)


def _histories(
    whole: Message, observations: Sequence[Message], where: str
) -> list[tuple[list[Message], list[Message] | None]]:
    calls = [each for each in observations if str(each.get("type")).upper() == "GENERATION"] or [whole]
    calls = [each for each in calls if each.get("input") or each.get("output")]
    said = [payloads.conversation(each.get("input"), each.get("output"), where) for each in calls]
    tools = next((found for each in calls if (found := payloads.tools(each.get("input")))), None)
    return [(each, tools) for each in payloads.longest(said) if each]


def _scores(whole: Message) -> dict[str, Any]:
    scores = payloads.parsed(whole.get("scores"))
    found = {str(s["name"]): s["value"] for s in scores if is_object(s, "name", "value")} if is_list(scores) else {}
    return {**found, INDEPENDENT: next(iter(found.values()))} if len(found) == 1 else found


def _ended(whole: Message, observations: Sequence[Message], said: Sequence[Message]) -> dict[str, Any]:
    """A trace whose root, or last call, ends with an error has failed, and so has one that never answered."""
    last = observations[-1] if observations else whole
    for each in (whole, last if not last.get("output") else whole):
        if each.get("level") == "ERROR":
            reason = _either(each, "statusMessage", "status_message")
            return {"status": "failed", "status_reason": first_line(reason or "level ERROR")}
    if not whole.get("output") and not any(message.get("role") == "assistant" for message in said):
        return {"status": "failed", "status_reason": "it has no output"}
    return {}


def _fits(value: Any) -> bool:
    if is_object(value, "trace", "observations"):
        return True
    observation = is_object(value, "traceId|trace_id", "type", "id") and is_object(value, "startTime|start_time")
    trace = is_object(value, "id", "timestamp", "input|output|observations") and "messages" not in value
    return (observation or trace) and "run_type" not in value


LANGFUSE = Format("Langfuse export", ("id", "traceId|trace_id|timestamp", "input|output"), _fits, _read)
