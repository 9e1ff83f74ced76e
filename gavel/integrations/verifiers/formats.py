"""Episodes of verifiers 0.2 and later (`traces.jsonl`): the messages of each agent as a graph, with weighted rewards.

    {"task": {"type": "Desk", "data": {"idx": 3, …}}, "traces": [{"nodes": [{"parent": null, "message": {…}}, …], …}]}

Each agent's trace is an attempt. The longest path from a root to a leaf is its conversation, the others are additional
histories. The independent reward is the weighted sum of the rewards.

Results of verifiers' evaluations (`results.jsonl`): prompt, completion, reward, and the example that was asked.

    {"example_id": 3, "task": "desk", "prompt": [{…}], "completion": [{…}], "answer": "42", "reward": 1.0, "exact": 1.0}

The rollouts of one example are a group; the columns of single reward functions are metrics.

Episodes are also written, one for each attempt. Each agent of an attempt has a trace, whose histories are branches of
its graph of messages; the tokens of a path from a root to a leaf, put together, are those that the model saw and
sampled. Data without a field is kept in the trace's `info`. A member that raised is an episode without a trace. Times
in verifiers' records are 0, since they are unknown.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from pydantic import JsonValue

from gavel.llm.types import Message
from gavel.scenarios.formats import chat
from gavel.scenarios.formats import fields as columns
from gavel.scenarios.formats.exported import (
    Call,
    Export,
    Losses,
    StoredAttempt,
    StoredGroup,
    Turn,
    attempts,
    facts,
    hex_id,
    is_text,
    media_of,
    tool_functions,
    turns,
)
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
from gavel.scenarios.trajectory import History, MessageOrChoice, RolloutError, Trajectory


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


_NO_METRICS = ("example_id", "id", "reward", "generation_ms", "scoring_ms", "total_ms", "answer", "task")


_OLDER = ("id", "task", "answer", "reward")
"""Fields of rows of verifiers before 0.1.4, in which rows of one example share an `id`."""


def _read_results(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    ids = Counter(json.dumps(row.value.get("id")) for row in rows)
    repeated = any(number > 1 for number in ids.values())
    for row in rows:
        fields = cast(Message, row.value)
        before = columns.side(row, fields["prompt"], "user", "prompt")
        answer = columns.side(row, fields["completion"] or "", "assistant", "completion")
        rest = {key: value for key, value in fields.items() if key not in ("prompt", "completion", "tool_defs")}
        plain = {key: value for key, value in rest.items() if isinstance(value, int | float)}
        numbers = {
            key: value for key, value in plain.items() if key not in _NO_METRICS and as_number(value) is not None
        }
        if fields.get("answer"):
            rest.setdefault("reference", fields["answer"])
        ended: Message = {"status": "truncated"} if fields.get("is_truncated") is True else {}
        if error := fields.get("error"):
            ended = {"status": "failed", "status_reason": first_line(error)}
        more = {"tools": openai_tools(fields.get("tool_defs")), "metrics": numbers, **ended}
        example = "example_id" if "example_id" in fields or not repeated else "id"
        task = {name: fields[name] for name in ("task", example) if name in fields}
        yield columns.attempt(row, VERIFIERS.name, before, answer, rest, task=task, **more)


VERIFIERS = Format(
    "verifiers results",
    ("prompt", "completion", "example_id", "reward|task"),
    lambda value: (
        is_object(value, "prompt", "completion", "example_id", "reward|task")
        or is_object(value, "prompt", "completion", *_OLDER)
    ),
    _read_results,
    task="example_id",
)


_FINISH = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "function_call": "tool_calls"}
_STOPPED = {"finished": "agent_completed", "truncated": "max_turns", "failed": "error"}


def episodes(groups: Iterable[StoredGroup], model: str | None, losses: Losses) -> Iterator[Message]:
    """One episode for each attempt, and for each member that raised."""
    for stored in groups:
        for attempt in attempts(stored):
            yield _build_episode(attempt, model, losses)
        for number, error in enumerate(stored.group.exceptions):
            yield _raised(stored, number, error, losses)


def _raised(stored: StoredGroup, number: int, error: RolloutError, losses: Losses) -> Message:
    identity = {"id": hex_id(stored.id, "raised", number, size=16), "group": {"id": stored.id}}
    ended = {"ok": False, "errors": [losses.plain(error.model_dump())], "traces": []}
    return {**identity, "task": _task(stored, losses), **ended}


def _build_episode(attempt: StoredAttempt, model: str | None, losses: Losses) -> Message:
    by_agent: dict[str, list[History]] = {}
    for history in attempt.trajectory.histories():
        by_agent.setdefault(history.agent or attempt.agent, []).append(history)
    failed = attempt.trajectory.status == "failed"
    reason = losses.text(attempt.trajectory.status_reason or "no reason is recorded")
    ended: Message = {"ok": not failed, "errors": [{"type": "failed", "message": reason}] if failed else []}
    task = _task(attempt.place, losses)
    traces = [
        {
            **{"version": 1, "id": hex_id(attempt.id, number, size=16), "task": task, "verifiers": {"version": ""}},
            **{"agent": {"config": {"model": model} if model else {}, "name": losses.text(agent)}, **ended},
            **{"is_completed": True, "stop_condition": _STOPPED[attempt.trajectory.status], "timing": {"start": 0.0}},
            **_build_graph(histories, model, losses),
        }
        for number, (agent, histories) in enumerate(by_agent.items())
    ]
    known = facts(attempt, losses)
    metrics: Message = known.get("metrics", {})
    traces[0]["rewards"] = {} if attempt.reward is None else {"reward": {"score": attempt.reward, "weight": 1.0}}
    traces[0]["metrics"] = {name: float(value) for name, value in metrics.items() if value is not None}
    traces[0]["info"] = {"gavel": known}  # facts without a field of their own
    identity = {"id": hex_id(attempt.id, size=16), "env": {"id": "gavel"}, "group": {"id": attempt.place.id}}
    return {**identity, "task": task, **ended, "traces": traces}


def _task(stored: StoredGroup, losses: Losses) -> Message:
    """The task of a group; its fields are under `metadata`, since verifiers types some names itself."""
    fields: Message = {**stored.group.metadata} or next(({**each.metadata} for each in stored.group), Message())
    data: Message = {"metadata": losses.plain(fields)} if fields else {}
    if isinstance(reference := fields.get("reference"), str):
        data["answer"] = losses.text(reference)
    return {"type": "Gavel", "data": data, "key": stored.id, "hash": hex_id(data, size=16)}


def _tools(history: History, losses: Losses) -> list[Message]:
    bodies = [{key: each for key, each in body.items() if each is not None} for body in tool_functions(history, losses)]
    return [
        {"type": "function", "name": "", **body, "description": str(body.get("description") or "")} for body in bodies
    ]


def _build_graph(histories: Sequence[History], model: str | None, losses: Losses) -> Message:
    """Tools, nodes and model calls of the histories, each a branch with a root of its own."""
    nodes: list[Message] = []
    calls: list[Message] = []
    for history in histories:
        parent: int | None = None
        seen: list[int] | None = []
        """The branch's tokens; None once they are not known."""
        for turn in turns(history, losses):
            node: Message = {"parent": parent, "message": _write_message(turn, len(nodes), losses), "timestamp": 0.0}
            if parent is None and history.tools:
                node["tools"] = _tools(history, losses)
            parent = len(nodes)
            nodes.append(node)
            if (sampled := turn.sampled) is None:
                continue
            if sampled.rest or sampled.policy_version is not None:
                losses.add("sampled turn with its policy's version or further fields of the sampler: left out")
            node["sampled"] = True
            call: Message = {"node": parent, "finish_reason": _FINISH.get(sampled.finish_reason or "")}
            calls.append(call | ({"model": model} if model else {}))
            prompt, own = sampled.prompt_ids, sampled.ids
            if own is None or prompt is None:
                seen = None
                continue
            calls[-1]["usage"] = {"prompt_tokens": len(prompt), "completion_tokens": len(own)}
            if seen is None or prompt[: len(seen)] != seen:
                losses.add("sampled turn whose prompt does not continue the turns before it: written without token ids")
                seen = None
                continue
            added = prompt[len(seen) :]
            node["token_ids"] = [*added, *own]
            node["mask"] = [False] * len(added) + [True] * len(own)
            node["logprobs"] = sampled.logprobs or []
            seen = [*prompt, *own]
    return {"tools": _tools(histories[0], losses), "nodes": nodes, "calls": calls}


def _write_message(turn: Turn, number: int, losses: Losses) -> Message:
    if turn.rest or (turn.name is not None and turn.role != "tool"):
        losses.add("message with fields that verifiers does not have (a speaker's name, a refusal, …): left out")
    if turn.role == "assistant":
        if not turn.is_text:
            losses.add("image, recording or other part of an assistant's message: written as its JSON text")
        return {
            "role": "assistant",
            "content": "\n".join(map(_as_text, turn.parts)) or None,
            "reasoning_content": turn.reasoning or None,
            "tool_calls": [_call(each, f"call-{number}-{at}", losses) for at, each in enumerate(turn.calls)] or None,
        }
    if turn.calls or turn.reasoning:
        losses.add("reasoning or tool call of a message that is not the agent's: left out")
    is_plain = turn.is_text and len(turn.parts) < 2
    message: Message = {
        "role": turn.role,
        "content": turn.text if is_plain else [_part(part, losses) for part in turn.parts],
    }
    if turn.role == "tool":
        if turn.call_id is None:
            losses.add("tool result without its call's id: it is given one")
        message |= {"tool_call_id": turn.call_id or f"call-{number}", "name": turn.name}
    return message


def _call(call: Call, own_id: str, losses: Losses) -> Message:
    if call.id is None:
        losses.add("tool call without an id: it is given one")
    kind = "custom" if "custom" in call.rest else "function"
    return {"id": call.id or own_id, "type": kind, "name": call.name, "arguments": call.arguments}


def _part(part: Message, losses: Losses) -> Message:
    match media_of(part):
        case ("image", url, _):
            return {"type": "image_url", "image_url": {"url": url}}
        case _:
            if not is_text(part):
                losses.add("message part that verifiers has no type for: written as its JSON text")
            return {"type": "text", "text": _as_text(part)}


def _as_text(part: Message) -> str:
    if (media := media_of(part)) is not None:
        return f"[{media[0]}: {media[1]}]"
    return part["text"] if is_text(part) else json.dumps(part, ensure_ascii=False)


FORMATS = (VERIFIERS, TRACES)
EXPORTS = {"verifiers": Export("verifiers traces", (".jsonl", ""), episodes, file="traces.jsonl")}
