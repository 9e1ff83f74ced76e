"""ATIF documents (Agent Trajectory Interchange Format): steps of system, user and agent, with their observations.

    {"schema_version": "ATIF-v1.8", "agent": {…}, "steps": [{"step_id": 1, "source": "user", "message": "…"}, …]}

The package `atif` validates them. Tool calls and their results keep their ids; sub-agents are additional histories.
"""

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from gavel.llm.types import Message
from gavel.scenarios.readers.checks import trajectory
from gavel.scenarios.readers.row import Attempt, Format, Row, RowError, Source, is_list, is_object
from gavel.scenarios.readers.tool_calls import as_json
from gavel.scenarios.readers.tool_calls import tools as openai_tools
from gavel.scenarios.trajectory import History, MessageOrChoice

_KEPT = ("session_id", "trajectory_id", "notes", "continued_trajectory_ref", "final_metrics")
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def _read(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    _validate(rows, source)
    for row in rows:
        document: Message = row.value
        fields: Message = {name: document[name] for name in _KEPT if document.get(name) is not None}
        for holder in (document.get("final_metrics"), document):
            if is_object(holder) and is_object(extra := holder.get("extra")):
                fields |= extra
        if name := document.get("continued_trajectory_ref"):
            source.notes.append(f"{row.where} goes on in {name}, which is an attempt of its own.")
        parts: list[Message] = document.get("subagent_trajectories") or []
        others = [
            History(messages_and_choices=list[MessageOrChoice](_messages(each, row.where)), tools=_tools(each))
            for each in parts
        ]
        said, tools = _messages(document, row.where), _tools(document)
        found = trajectory(said, row.where, tools=tools, fields=fields, additional_histories=others)
        yield Attempt(found, row, ATIF.name)


def _validate(rows: Sequence[Row], source: Source) -> None:
    """Raises `RowError` for a document that `atif` refuses."""
    try:
        atif: Any = importlib.import_module("atif")
    except ImportError:
        source.notes.append("the documents are not validated: pip install 'atif>=1.8'")
        return
    for row in rows:
        try:
            atif.Trajectory.model_validate(row.value)
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise RowError(
                f"{row.where} is no valid {row.value['schema_version']} document: {problem}",
                "Write it again with its program. A later version of ATIF needs: pip install --upgrade atif",
            ) from error


def _messages(document: Message, where: str) -> list[Message]:
    found: list[Message] = []
    for number, step in enumerate(document["steps"]):
        if not is_object(step, "source", "message") or step["source"] not in _ROLES:
            problem = f"{where} cannot be judged: steps.{number}: it has no message, or no source that is known."
            raise RowError(problem, f"The source of a step is {', '.join(_ROLES)}.")
        said: Message = {"role": _ROLES[step["source"]], "content": _content(step["message"])}
        if step.get("reasoning_content"):
            said["reasoning_content"] = step["reasoning_content"]
        if calls := step.get("tool_calls"):
            said["tool_calls"] = [_call(call) for call in calls]
        found.append(said)
        observation = step.get("observation")
        results = observation.get("results") if is_object(observation) else None
        told = [_result(each, step["source"]) for each in results or () if is_object(each)]
        found += [message for message in told if message is not None]
    return found


def _call(call: Message) -> Message:
    function = {"name": call.get("function_name", ""), "arguments": as_json(call.get("arguments"))}
    return {"id": call.get("tool_call_id"), "type": "function", "function": function}


def _result(result: Message, source: str) -> Message | None:
    """The answer to a call; what answers none, such as a terminal's output, is what the agent is told next."""
    content = result.get("content")
    if content is None and is_list(delegated := result.get("subagent_trajectory_ref")):
        content = as_json(delegated)
    text = _content(content) or ""
    if call := result.get("source_call_id"):
        return {"role": "tool", "content": text, "tool_call_id": call}
    return {"role": "system" if source == "system" else "user", "content": text} if text else None


def _content(content: Any) -> Any:
    """Images in OpenAI's form; all else as it is."""
    if not is_list(content):
        return content
    parts: list[Any] = []
    for part in content:
        source = part.get("source") if is_object(part, "source") and part.get("type") == "image" else None
        parts.append({"type": "image_url", "image_url": {"url": source["path"]}} if is_object(source, "path") else part)
    return parts


def _tools(document: Message) -> list[Message] | None:
    agent = document.get("agent")
    return openai_tools(agent.get("tool_definitions")) if is_object(agent) else None


def _fits(value: Any) -> bool:
    return (
        is_object(value, "schema_version", "agent", "steps")
        and is_list(value["steps"])
        and str(value["schema_version"]).startswith("ATIF")
    )


ATIF = Format("ATIF", ("schema_version", "agent", "steps"), _fits, _read)
