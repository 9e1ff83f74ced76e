"""Exports of tracers: Langfuse's traces and observations, LangSmith's runs. A trace is an attempt.

    {"id": "t1", "name": "desk", "input": …, "output": …, "scores": [{"name": "correct", "value": 1}]}
    {"id": "o1", "traceId": "t1", "type": "GENERATION", "startTime": …, "input": [{…}], "output": {…}}
    {"id": "r1", "trace_id": "r1", "run_type": "chain", "inputs": {…}, "outputs": {…}, "parent_run_id": null, …}

Where calls to models are exported too, the conversation is that of the last one, which repeats those before it;
conversations that none repeats (of sub-agents) are additional histories.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats import anthropic, chat
from gavel.scenarios.formats.row import (
    INDEPENDENT,
    Attempt,
    Format,
    Row,
    Source,
    as_json,
    first_line,
    is_list,
    is_object,
    trajectory,
)
from gavel.scenarios.formats.row import tools as openai_tools
from gavel.scenarios.formats.text import cell, is_conversation
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
    said = [conversation(each.get("input"), each.get("output"), where) for each in calls]
    tools = next((found for each in calls if (found := offered_tools(each.get("input")))), None)
    return [(each, tools) for each in longest(said) if each]


def _scores(whole: Message) -> dict[str, Any]:
    scores = parsed(whole.get("scores"))
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


_CALLS = ("llm", "chat_model")
_RUN_FIELDS = ("name", "session_id", "session_name", "tags", "extra")


def _read_runs(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    traces: dict[Any, list[tuple[Row, Message]]] = {}
    for row in rows:
        for run in _with_children(row.value):
            traces.setdefault(_run_trace(row.value), []).append((row, run))
    for name, members in traces.items():
        runs = sorted((run for _, run in members), key=_time)
        root = next((run for run in runs if _is_root(run)), runs[0])
        row = next(row for row, run in members if run is root)
        found = _run_histories(root, runs, row.where)
        if not found:
            source.left_out["trace without inputs and outputs"] += 1
            continue
        said, *others = found
        fields: dict[str, Any] = {key: root[key] for key in _RUN_FIELDS if root.get(key) is not None} | {
            "trace_id": name
        }
        tools = next((tools for run in runs if (tools := _tools(run))), None)
        histories = [History(messages_and_choices=list[MessageOrChoice](each), tools=tools) for each in others]
        attempt = trajectory(
            said,
            row.where,
            tools=tools,
            fields=fields,
            metrics=_feedback(root),
            additional_histories=histories,
            **_run_ended(root, runs, said),
        )
        example = root.get("reference_example_id")
        yield Attempt(attempt, row, LANGSMITH.name, {"reference_example_id": example} if example else None)


def _run_ended(root: Message, runs: Sequence[Message], said: Sequence[Message]) -> dict[str, str]:
    """A run with an error has failed, and so has one that never answered: it was cut off, or still ran."""
    run = root if _is_root(root) else runs[-1]
    state = str(run.get("status") or "")
    if error := run.get("error"):
        return {"status": "failed", "status_reason": first_line(error)}
    if state.lower() in ("error", "failed"):
        return {"status": "failed", "status_reason": f"status {state}"}
    if not run.get("outputs") and not any(message.get("role") == "assistant" for message in said):
        return {"status": "failed", "status_reason": f"it has no outputs{f' (status {state})' if state else ''}"}
    return {}


def _is_root(run: Message) -> bool:
    if run.get("trace_id"):
        return run["trace_id"] == (run.get("id") or run.get("run_id"))
    return not (run.get("parent_run_id") or run.get("parent_run_ids"))


def _time(run: Message) -> str:
    return str(run.get("dotted_order") or run.get("start_time"))


def _run_trace(run: Message) -> Any:
    return run.get("trace_id") or run.get("id") or run.get("run_id")


def _with_children(run: Message) -> Iterator[Message]:
    yield run
    children = run.get("child_runs")
    for child in children if is_list(children) else []:
        if is_object(child):
            yield from _with_children(child)


def _run_histories(root: Message, runs: Sequence[Message], where: str) -> list[list[Message]]:
    calls = [run for run in runs if run.get("run_type") in _CALLS and has_messages(run.get("inputs"))] or [root]
    said = [conversation(run.get("inputs"), run.get("outputs"), where) for run in calls]
    return longest([each for each in said if each])


def _tools(run: Message) -> list[Message] | None:
    extra = parsed(run.get("extra"))
    offered = extra.get("invocation_params") if is_object(extra) else None
    return offered_tools(offered) or offered_tools(run.get("inputs"))


def _feedback(root: Message) -> dict[str, Any]:
    stats = parsed(root.get("feedback_stats"))
    found = {name: value["avg"] for name, value in stats.items() if is_object(value, "avg")} if is_object(stats) else {}
    return {**found, INDEPENDENT: next(iter(found.values()))} if len(found) == 1 else found


LANGSMITH = Format(
    "LangSmith runs",
    ("id|run_id", "run_type", "inputs|outputs"),
    lambda value: is_object(value, "run_type", "id|run_id", "inputs|outputs"),
    _read_runs,
    task="reference example",
)


_LISTS = ("messages", "input", "prompt", "chat_history")
_OUTPUTS = ("messages", "output", "generations", "choices", "message")


def conversation(given: Any, answered: Any, where: str) -> list[Message]:
    """The messages of the input and those of the output; the output's alone where it holds the whole (LangGraph)."""
    before, _ = chat.messages(_messages(given, _LISTS, "user"), where)
    after, _ = chat.messages(_messages(answered, _OUTPUTS, "assistant"), where)
    if not has_messages(given) and any(message.get("role") == "user" for message in after):
        return after  # a whole conversation, for whose beginning the input holds only the values
    repeated = len(after) > len(before) and [_core(m) for m in after[: len(before)]] == [_core(m) for m in before]
    return after if repeated else [*before, *after]


def offered_tools(given: Any) -> list[Message] | None:
    """The tools that a call's input offers."""
    given = cell(given) if isinstance(given, str) else given
    return openai_tools(given.get("tools")) if is_object(given, "tools") else None


def has_messages(given: Any) -> bool:
    """Whether an input holds messages, and not only text."""
    return bool(_found(given, _LISTS))


def parsed(value: Any) -> Any:
    """A payload that a table keeps as its JSON text."""
    return cell(value) if isinstance(value, str) else value


def longest(conversations: Sequence[list[Message]]) -> list[list[Message]]:
    """Those that are not the beginning of a later one: a call repeats the conversation so far. The longest first."""
    kept: list[list[Message]] = []
    cores = [[_core(message) for message in each] for each in conversations]
    for number, core in enumerate(cores):
        later = cores[number + 1 :]
        if not any(other[: len(core)] == core for other in later):
            kept.append(conversations[number])
    return sorted(kept, key=len, reverse=True)


def _core(message: Message) -> tuple[Any, ...]:
    """What makes two loggings of one message the same."""
    calls = message.get("tool_calls")
    named = [as_json(call.get("function")) for call in calls if is_object(call)] if is_list(calls) else []
    return message.get("role"), as_json(message.get("content") or ""), *named


def _messages(payload: Any, names: Sequence[str], role: str) -> list[Any]:
    """The payload's messages; a payload without any is one message of `role`."""
    payload = parsed(payload)
    if payload is None or payload in ("", {}, []):
        return []
    found = _found(payload, names)
    if found:
        system = anthropic.system(payload.get("system")) if is_object(payload, "messages", "system") else []
        return [*system, *found]
    if is_object(payload) and len(payload) == 1 and isinstance(only := next(iter(payload.values())), str):
        return [{"role": role, "content": only}]
    return [{"role": role, "content": payload if isinstance(payload, str) else as_json(payload)}]


def _found(payload: Any, names: Sequence[str]) -> list[Any]:
    """The conversation in a payload, however deep; none where there is none."""
    payload = parsed(payload)
    if is_list(payload):
        if is_conversation(payload):
            return payload
        return _found(payload[0], names) if len(payload) == 1 else []  # batches of one, as LangChain logs them
    if not is_object(payload):
        return []
    if is_conversation([payload]) and "finish_reason" not in payload:
        return [payload]
    for name in names:
        if found := _found(payload.get(name), names):
            return found
    return []
