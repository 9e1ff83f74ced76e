"""Exports of tracers: Langfuse's traces and observations, LangSmith's runs. A trace is an attempt.

    {"id": "t1", "name": "desk", "input": …, "output": …, "scores": [{"name": "correct", "value": 1}]}
    {"id": "o1", "traceId": "t1", "type": "GENERATION", "startTime": …, "input": [{…}], "output": {…}}
    {"id": "r1", "trace_id": "r1", "run_type": "chain", "inputs": {…}, "outputs": {…}, "parent_run_id": null, …}

If model calls are exported too, the conversation is that of the last call, which repeats the earlier ones;
conversations that no later call repeats (sub-agents') become additional histories.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats import bodies, chat
from gavel.scenarios.formats.row import (
    Attempt,
    Format,
    Row,
    Source,
    as_json,
    as_list,
    first_line,
    first_of,
    is_list,
    is_object,
    trajectory,
    with_single_score,
)
from gavel.scenarios.formats.row import tools as openai_tools
from gavel.scenarios.formats.text import cell, is_conversation
from gavel.scenarios.trajectory import History, MessageOrChoice


@dataclass(frozen=True, slots=True)
class _Trace:
    id: Any
    row: Row
    root: Message
    calls: list[tuple[Any, Any, list[Message] | None]]
    """Input, output and offered tools of each model call, in order of time; of the root if there is none."""
    scores: dict[str, Any]
    error: Any
    """The final error; None = none."""
    has_output: bool
    missing: str
    """Reason of its failure if it has no output and no answer."""


def _make_attempts(
    traces: Iterator[_Trace], source: Source, form: str, kept: Sequence[str], empty: str
) -> Iterator[Attempt]:
    for trace in traces:
        where = trace.row.where
        found = longest([conversation(given, answered, where) for given, answered, _ in trace.calls])
        if not found:
            source.left_out[f"trace without {empty}"] += 1
            continue
        tools = next((offered for *_, offered in trace.calls if offered), None)
        said, *others = found
        ended: dict[str, Any] = {}
        if trace.error is not None:
            ended = {"status": "failed", "status_reason": first_line(trace.error)}
        elif not trace.has_output and not any(message.get("role") == "assistant" for message in said):
            ended = {"status": "failed", "status_reason": trace.missing}
        made = trajectory(
            said,
            where,
            tools=tools,
            fields={name: trace.root[name] for name in kept if trace.root.get(name) is not None}
            | {"trace_id": trace.id},
            metrics=with_single_score(trace.scores),
            additional_histories=[History(messages_and_choices=list[MessageOrChoice](m), tools=tools) for m in others],
            **ended,
        )
        example = trace.root.get("reference_example_id")
        yield Attempt(made, trace.row, form, {"reference_example_id": example} if example else None)


_TRACE_IDS = ("traceId", "trace_id")


def _read_langfuse(rows: Sequence[Row]) -> Iterator[_Trace]:
    traces: dict[Any, list[Row]] = {}
    known: Counter[Any] = Counter()
    for row in rows:
        record: Message = row.value
        inner = record.get("trace")
        name = inner.get("id") if is_object(inner) else first_of(record, *_TRACE_IDS, "id")
        if not _is_observation(record):
            known[name] += 1
        key = name if known[name] < 2 else f"{name} ({known[name]})"  # rows of other programs may share an id
        traces.setdefault(key, []).append(row)
    for name, records in traces.items():
        root, observations = _sort_records(records)
        calls = [each for each in observations if str(each.get("type")).upper() == "GENERATION"] or [root]
        scores = parsed(root.get("scores"))
        last = observations[-1] if observations else root
        ended = next(
            (each for each in (root, root if last.get("output") else last) if each.get("level") == "ERROR"), None
        )
        yield _Trace(
            id=name,
            row=records[0],
            root=root,
            calls=[
                (each.get("input"), each.get("output"), offered_tools(each.get("input")))
                for each in calls
                if each.get("input") or each.get("output")
            ],
            scores={str(each["name"]): each["value"] for each in as_list(scores) if is_object(each, "name", "value")},
            error=None if ended is None else first_of(ended, "statusMessage", "status_message") or "level ERROR",
            has_output=bool(root.get("output")),
            missing="it has no output",
        )


def _is_observation(record: Message) -> bool:
    return first_of(record, *_TRACE_IDS) is not None and "type" in record


def _sort_records(rows: Sequence[Row]) -> tuple[Message, list[Message]]:
    """The trace's own record (or else its root observation), and its observations in order of time."""
    whole: Message = {}
    observations: list[Message] = []
    for row in rows:
        record: Message = row.value
        observations += filter(is_object, as_list(record.get("observations")))
        if _is_observation(record):
            observations.append(record)
        else:
            whole = record["trace"] if is_object(record.get("trace")) else record
    observations.sort(key=lambda each: str(first_of(each, "startTime", "start_time") or ""))
    roots = [each for each in observations if not first_of(each, "parentObservationId", "parent_observation_id")]
    return whole or (roots or observations)[0], observations


def _fits(value: Any) -> bool:
    if is_object(value, "trace", "observations"):
        return True
    observation = is_object(value, "traceId|trace_id", "type", "id") and is_object(value, "startTime|start_time")
    trace = is_object(value, "id", "timestamp", "input|output|observations") and "messages" not in value
    return (observation or trace) and "run_type" not in value


_TRACE_FIELDS = (
    *("name", "userId", "user_id", "sessionId", "session_id", "metadata", "tags"),
    *("environment", "version", "release"),
)
LANGFUSE = Format(
    "Langfuse export",
    ("id", "traceId|trace_id|timestamp", "input|output"),
    _fits,
    lambda rows, source: _make_attempts(_read_langfuse(rows), source, LANGFUSE.name, _TRACE_FIELDS, "input and output"),
)


def _read_langsmith(rows: Sequence[Row]) -> Iterator[_Trace]:
    traces: dict[Any, list[tuple[Row, Message]]] = {}
    for row in rows:
        name = first_of(row.value, "trace_id", "id", "run_id")
        traces.setdefault(name, []).extend((row, run) for run in _with_children(row.value))
    for name, members in traces.items():
        members.sort(key=lambda member: str(first_of(member[1], "dotted_order", "start_time")))
        row, root = next((member for member in members if _is_root(member[1])), members[0])
        runs = [run for _, run in members]
        calls = [
            run for run in runs if run.get("run_type") in ("llm", "chat_model") and has_messages(run.get("inputs"))
        ]
        tools = next((tools for run in runs if (tools := _tools(run))), None)
        stats = parsed(root.get("feedback_stats"))
        last = root if _is_root(root) else runs[-1]
        state = str(last.get("status") or "")
        yield _Trace(
            id=name,
            row=row,
            root=root,
            calls=[(run.get("inputs"), run.get("outputs"), tools) for run in calls or [root]],
            scores={n: each["avg"] for n, each in stats.items() if is_object(each, "avg")} if is_object(stats) else {},
            error=last.get("error") or (f"status {state}" if state.lower() in ("error", "failed") else None),
            has_output=bool(last.get("outputs")),
            missing=f"it has no outputs{f' (status {state})' if state else ''}",
        )


def _is_root(run: Message) -> bool:
    if run.get("trace_id"):
        return run["trace_id"] == (run.get("id") or run.get("run_id"))
    return not (run.get("parent_run_id") or run.get("parent_run_ids"))


def _with_children(run: Message) -> Iterator[Message]:
    yield run
    for child in filter(is_object, as_list(run.get("child_runs"))):
        yield from _with_children(child)


def _tools(run: Message) -> list[Message] | None:
    extra = parsed(run.get("extra"))
    offered = extra.get("invocation_params") if is_object(extra) else None
    return offered_tools(offered) or offered_tools(run.get("inputs"))


LANGSMITH = Format(
    "LangSmith runs",
    ("id|run_id", "run_type", "inputs|outputs"),
    lambda value: is_object(value, "run_type", "id|run_id", "inputs|outputs"),
    lambda rows, source: _make_attempts(
        _read_langsmith(rows), source, LANGSMITH.name, _RUN_FIELDS, "inputs and outputs"
    ),
    task="reference example",
)
_RUN_FIELDS = ("name", "session_id", "session_name", "tags", "extra")


_LISTS = ("messages", "input", "prompt", "chat_history")
_OUTPUTS = ("messages", "output", "generations", "choices", "message")


def conversation(given: Any, answered: Any, where: str) -> list[Message]:
    """The input's messages and the output's; the output's alone if it holds the whole conversation (LangGraph)."""
    before, _ = chat.messages(_messages(given, _LISTS, "user"), where)
    after, _ = chat.messages(_messages(answered, _OUTPUTS, "assistant"), where)
    if not has_messages(given) and any(message.get("role") == "user" for message in after):
        return after  # the output is a whole conversation, and the input holds only template values for its beginning
    repeated = len(after) > len(before) and [_core(m) for m in after[: len(before)]] == [_core(m) for m in before]
    return after if repeated else [*before, *after]


def offered_tools(given: Any) -> list[Message] | None:
    """The tools that a call's input offers."""
    given = cell(given) if isinstance(given, str) else given
    return openai_tools(given.get("tools")) if is_object(given, "tools") else None


def has_messages(given: Any) -> bool:
    """Whether an input holds messages, not only text."""
    return bool(_find_conversation(given, _LISTS))


def parsed(value: Any) -> Any:
    """Parses a payload that a table stores as JSON text."""
    return cell(value) if isinstance(value, str) else value


def longest(conversations: Sequence[list[Message]]) -> list[list[Message]]:
    """Messages lists that are no prefix of a later one, the longest first: a call repeats the conversation so far."""
    kept: list[list[Message]] = []
    conversations = [each for each in conversations if each]
    cores = [[_core(message) for message in each] for each in conversations]
    for number, core in enumerate(cores):
        later = cores[number + 1 :]
        if not any(other[: len(core)] == core for other in later):
            kept.append(conversations[number])
    return sorted(kept, key=len, reverse=True)


def _core(message: Message) -> tuple[Any, ...]:
    """The content that two loggings of one message share."""
    calls = message.get("tool_calls")
    named = [as_json(call.get("function")) for call in calls if is_object(call)] if is_list(calls) else []
    return message.get("role"), as_json(message.get("content") or ""), *named


def _messages(payload: Any, names: Sequence[str], role: str) -> list[Any]:
    """The payload's messages; a payload without any becomes one message of `role`."""
    payload = parsed(payload)
    if payload is None or payload in ("", {}, []):
        return []
    found = _find_conversation(payload, names)
    if found:
        system = bodies.system(payload.get("system")) if is_object(payload, "messages", "system") else []
        return [*system, *found]
    if is_object(payload) and len(payload) == 1 and isinstance(only := next(iter(payload.values())), str):
        return [{"role": role, "content": only}]
    return [{"role": role, "content": payload if isinstance(payload, str) else as_json(payload)}]


def _find_conversation(payload: Any, names: Sequence[str]) -> list[Any]:
    """The conversation in a payload, at any depth; empty if there is none."""
    payload = parsed(payload)
    if is_list(payload):
        if is_conversation(payload):
            return payload
        return (
            _find_conversation(payload[0], names) if len(payload) == 1 else []
        )  # batches of one, as LangChain logs them
    if not is_object(payload):
        return []
    if is_conversation([payload]) and "finish_reason" not in payload:
        return [payload]
    for name in names:
        if found := _find_conversation(payload.get(name), names):
            return found
    return []
