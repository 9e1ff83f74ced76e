"""LangSmith's runs: bulk exports, `list_runs` and the runs of a query, as JSON, JSON lines or Parquet.

    {"id": "r1", "trace_id": "r1", "run_type": "chain", "inputs": {…}, "outputs": {…}, "parent_run_id": null, …}

A trace is an attempt. Where its calls to models (`run_type` llm) are exported too, its conversation is that of the last
one, which repeats those before it; conversations that none repeats are additional histories.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats import payloads
from gavel.scenarios.formats.checks import INDEPENDENT, first_line, trajectory
from gavel.scenarios.formats.row import Attempt, Format, Row, Source, is_list, is_object
from gavel.scenarios.trajectory import History, MessageOrChoice

_CALLS = ("llm", "chat_model")
_KEPT = ("name", "session_id", "session_name", "tags", "extra")


def _read(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    traces: dict[Any, list[tuple[Row, Message]]] = {}
    for row in rows:
        for run in _with_children(row.value):
            traces.setdefault(_trace_id(row.value), []).append((row, run))
    for name, members in traces.items():
        runs = sorted((run for _, run in members), key=_time)
        root = next((run for run in runs if _is_root(run)), runs[0])
        row = next(row for row, run in members if run is root)
        found = _histories(root, runs, row.where)
        if not found:
            source.left_out["trace without inputs and outputs"] += 1
            continue
        said, *others = found
        fields: dict[str, Any] = {key: root[key] for key in _KEPT if root.get(key) is not None} | {"trace_id": name}
        tools = next((tools for run in runs if (tools := _tools(run))), None)
        histories = [History(messages_and_choices=list[MessageOrChoice](each), tools=tools) for each in others]
        attempt = trajectory(
            said,
            row.where,
            tools=tools,
            fields=fields,
            metrics=_feedback(root),
            additional_histories=histories,
            **_ended(root, runs, said),
        )
        example = root.get("reference_example_id")
        yield Attempt(attempt, row, LANGSMITH.name, {"reference_example_id": example} if example else None)


def _ended(root: Message, runs: Sequence[Message], said: Sequence[Message]) -> dict[str, str]:
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


def _trace_id(run: Message) -> Any:
    return run.get("trace_id") or run.get("id") or run.get("run_id")


def _with_children(run: Message) -> Iterator[Message]:
    yield run
    children = run.get("child_runs")
    for child in children if is_list(children) else []:
        if is_object(child):
            yield from _with_children(child)


def _histories(root: Message, runs: Sequence[Message], where: str) -> list[list[Message]]:
    calls = [run for run in runs if run.get("run_type") in _CALLS and payloads.has_messages(run.get("inputs"))] or [
        root
    ]
    said = [payloads.conversation(run.get("inputs"), run.get("outputs"), where) for run in calls]
    return payloads.longest([each for each in said if each])


def _tools(run: Message) -> list[Message] | None:
    extra = payloads.parsed(run.get("extra"))
    offered = extra.get("invocation_params") if is_object(extra) else None
    return payloads.tools(offered) or payloads.tools(run.get("inputs"))


def _feedback(root: Message) -> dict[str, Any]:
    stats = payloads.parsed(root.get("feedback_stats"))
    found = {name: value["avg"] for name, value in stats.items() if is_object(value, "avg")} if is_object(stats) else {}
    return {**found, INDEPENDENT: next(iter(found.values()))} if len(found) == 1 else found


LANGSMITH = Format(
    "LangSmith runs",
    ("id|run_id", "run_type", "inputs|outputs"),
    lambda value: is_object(value, "run_type", "id|run_id", "inputs|outputs"),
    _read,
    task="reference example",
)
