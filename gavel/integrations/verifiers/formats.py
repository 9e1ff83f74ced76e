"""Episodes of verifiers 0.2 and later (`traces.jsonl`): the messages of each agent as a graph, with weighted rewards.

    {"task": {"type": "Desk", "data": {"idx": 3, …}}, "traces": [{"nodes": [{"parent": null, "message": {…}}, …], …}]}

Each agent's trace is an attempt. The longest path from a root to a leaf is its conversation, the others are additional
histories. The independent reward is the weighted sum of the rewards.

Results of verifiers' evaluations (`results.jsonl`): prompt, completion, reward, and the example that was asked.

    {"example_id": 3, "task": "desk", "prompt": [{…}], "completion": [{…}], "answer": "42", "reward": 1.0, "exact": 1.0}

The rollouts of one example are a group; the columns of single reward functions are metrics.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from pydantic import JsonValue

from gavel.llm.types import Message
from gavel.scenarios.formats import chat
from gavel.scenarios.formats import fields as columns
from gavel.scenarios.formats.row import (
    INDEPENDENT,
    Attempt,
    Format,
    Row,
    RowError,
    Source,
    as_number,
    first_line,
    is_list,
    is_object,
    trajectory,
)
from gavel.scenarios.formats.row import tools as openai_tools
from gavel.scenarios.trajectory import History, MessageOrChoice, Trajectory


def _read(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        if not row.value["traces"]:
            source.leave_out(row, "episode without a trace")
        for trace in row.value["traces"]:
            if not is_object(trace, "nodes") or not trace["nodes"]:
                source.leave_out(row, "trace without messages")
                continue
            task: Message = trace.get("task") or row.value["task"]
            data: Message = task.get("data") or {}
            name = task.get("key") or task.get("hash") or data.get("idx")
            own: dict[str, JsonValue] = {"task": str(name), "type": str(task.get("type")), "agent": _agent(trace)}
            found = trace_trajectory(trace, task, row.where)
            yield Attempt(found, row, TRACES.name, None if name is None else own)


def trace_trajectory(trace: Message, task: Message, where: str) -> Trajectory:
    """One agent's trace as a trajectory. Raises `RowError` if it cannot be judged."""
    said, *others = sorted(_find_paths(trace["nodes"], where), key=len, reverse=True)
    tools = openai_tools(trace.get("tools"))
    data: Message = task.get("data") or {}
    fields: Message = {"task": task, "agent": _agent(trace), "info": trace.get("info")}
    if data.get("answer"):
        fields["reference"] = data["answer"]
    histories = [History(messages_and_choices=list[MessageOrChoice](each), tools=tools) for each in others]
    return trajectory(
        said,
        where,
        tools=tools,
        fields={name: value for name, value in fields.items() if value},
        metrics={**(trace.get("metrics") or {}), **_rewards(trace.get("rewards") or {})},
        additional_histories=histories,
        **_ended(trace),
    )


def _agent(trace: Message) -> str:
    acted: Message = trace.get("agent") or {}
    return str(acted.get("name", "agent"))


def _find_paths(nodes: list[Any], where: str) -> Iterator[list[Message]]:
    """The path of messages to each leaf of the graph."""
    parents = {node.get("parent") for node in nodes if is_object(node)}
    for number, node in enumerate(nodes):
        if number in parents:
            continue
        path: list[Any] = []
        while is_object(node, "message") and len(path) <= len(nodes):
            path.append(node["message"])
            parent = node.get("parent")
            node = nodes[parent] if isinstance(parent, int) and 0 <= parent < len(nodes) else None
        if not path or len(path) > len(nodes):
            raise RowError(f"{where} cannot be judged: nodes: they are no graph of messages.", "Write it again.")
        yield chat.messages(path[::-1], where)[0]


def _rewards(given: Message) -> dict[str, float]:
    """Each reward by its name, and their weighted sum."""
    found: dict[str, float] = {}
    total = 0.0
    for name, reward in given.items():
        score = as_number(reward.get("score")) if is_object(reward) else None
        if score is not None:
            found[name] = score
            total += score * (as_number(reward.get("weight", 1.0)) or 0.0)
    return {**found, INDEPENDENT: total} if found else {}


def _ended(trace: Message) -> dict[str, Any]:
    errors = trace.get("errors")
    if is_list(errors) and errors and not trace.get("ok", True):
        last = errors[-1]
        return {"status": "failed", "status_reason": str(last.get("message") if is_object(last) else last)}
    return {"status": "truncated", "status_reason": "timeout"} if trace.get("is_timeout") else {}


TRACES = Format(
    "verifiers traces",
    ("task", "traces"),
    lambda value: is_object(value, "task", "traces") and is_list(value["traces"]) and is_object(value["task"]),
    _read,
    task="task",
)


_NO_METRICS = {"example_id", "id", "reward", "generation_ms", "scoring_ms", "total_ms", "answer", "task"}


def _read_results(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        fields = cast(Message, row.value)
        before = columns.side(row, fields["prompt"], "user", "prompt")
        answer = columns.side(row, fields["completion"] or "", "assistant", "completion")
        rest = {key: value for key, value in fields.items() if key not in ("prompt", "completion", "tool_defs")}
        plain = {key: value for key, value in rest.items() if isinstance(value, int | float)}
        numbers = {key: each for key, each in plain.items() if key not in _NO_METRICS and as_number(each) is not None}
        if fields.get("answer"):
            rest.setdefault("reference", fields["answer"])
        ended: Message = {"status": "truncated"} if fields.get("is_truncated") is True else {}
        if error := fields.get("error"):
            ended = {"status": "failed", "status_reason": first_line(error)}
        more = {"tools": openai_tools(fields.get("tool_defs")), "metrics": numbers, **ended}
        task = {name: fields[name] for name in ("task", "example_id") if name in fields}
        yield columns.attempt(row, VERIFIERS.name, before, answer, rest, task=task, **more)


VERIFIERS = Format(
    "verifiers results",
    ("prompt", "completion", "example_id", "reward|task"),
    lambda value: is_object(value, "prompt", "completion", "example_id", "reward|task"),
    _read_results,
    task="example_id",
)


FORMATS = (VERIFIERS, TRACES)
