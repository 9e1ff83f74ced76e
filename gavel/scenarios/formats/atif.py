"""ATIF documents (Agent Trajectory Interchange Format): steps of system, user and agent, with their observations.

    {"schema_version": "ATIF-v1.8", "agent": {…}, "steps": [{"step_id": 1, "source": "user", "message": "…"}, …]}

The package `atif` validates them, read or written. Tool calls and their results keep their ids; sub-agents are
additional histories. Writing: a step's data without a field goes to its `extra`, an attempt's to the document's
`extra.gavel`.
"""

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import atif
from pydantic import ValidationError

from gavel.base.errors import GavelError
from gavel.llm.types import Message
from gavel.scenarios.formats import chat
from gavel.scenarios.formats import fields as columns
from gavel.scenarios.formats.exported import (
    Call,
    Losses,
    Media,
    Part,
    Sampled,
    StoredAttempt,
    StoredGroup,
    Text,
    Turn,
    all_attempts,
    facts,
    tool_definitions,
    turns,
)
from gavel.scenarios.formats.row import (
    Attempt,
    Format,
    Row,
    RowError,
    Source,
    as_json,
    as_list,
    is_list,
    is_object,
    refused,
)
from gavel.scenarios.formats.row import tools as openai_tools
from gavel.scenarios.trajectory import History, MessageOrChoice

_KEPT = ("session_id", "trajectory_id", "notes", "continued_trajectory_ref", "final_metrics")
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def _read(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        document: Message = row.value
        try:
            atif.Trajectory.model_validate(document)
        except ValidationError as error:
            raise RowError(
                f"{row.where} is no valid {document['schema_version']} document: {_problem(error)}",
                "Write it again with its program. A later version of ATIF needs: pip install --upgrade atif",
            ) from error
        fields: Message = {name: document[name] for name in _KEPT if document.get(name) is not None}
        for holder in (document.get("final_metrics"), document):
            if is_object(holder) and is_object(extra := holder.get("extra")):
                fields |= extra
        if name := document.get("continued_trajectory_ref"):
            source.notes.append(f"{row.where} goes on in {name}, which is an attempt of its own.")
        others = [
            History(messages_and_choices=list[MessageOrChoice](_read_messages(each, row.where)), tools=_tools(each))
            for each in as_list(document.get("subagent_trajectories"))
        ]
        said = _read_messages(document, row.where)
        yield columns.attempt(row, ATIF.name, None, said, fields, tools=_tools(document), additional_histories=others)


def _problem(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _read_messages(document: Message, where: str) -> list[Message]:
    found: list[Message] = []
    for number, step in enumerate(document["steps"]):
        if not is_object(step, "source", "message") or step["source"] not in _ROLES:
            problem = f"steps.{number}: it has no message, or no source that is known."
            raise refused(where, problem, f"The source of a step is {', '.join(_ROLES)}.")
        said: Message = {"role": _ROLES[step["source"]], "content": step["message"]}
        if step.get("reasoning_content"):
            said["reasoning_content"] = step["reasoning_content"]
        if calls := step.get("tool_calls"):
            said["tool_calls"] = calls
        found.append(said)
        observation = step.get("observation")
        results = as_list(observation.get("results")) if is_object(observation) else []
        found += (each for result in results if is_object(result) for each in _result(result, step["source"]))
    return chat.messages(found, where)[0]


def _result(result: Message, source: str) -> list[Message]:
    """The result of a call; one without a call, such as a terminal's output, becomes the next user message."""
    content = result.get("content")
    if content is None and is_list(delegated := result.get("subagent_trajectory_ref")):
        content = as_json(delegated)
    text = content or ""
    if call := result.get("source_call_id"):
        return [{"role": "tool", "content": text, "tool_call_id": call}]
    return [{"role": "system" if source == "system" else "user", "content": text}] if text else []


def _tools(document: Message) -> list[Message] | None:
    agent = document.get("agent")
    return openai_tools(agent.get("tool_definitions")) if is_object(agent) else None


_FIELDS = ("schema_version", "agent", "steps")
ATIF = Format(
    "ATIF",
    _FIELDS,
    lambda it: is_object(it, *_FIELDS) and is_list(it["steps"]) and str(it["schema_version"]).startswith("ATIF"),
    _read,
)


SCHEMA_VERSION = "ATIF-v1.8"
_SOURCES = {"system": "system", "user": "user", "assistant": "agent"}
_MEDIA_TYPES = {
    "image": ("image/jpeg", "image/png", "image/gif", "image/webp"),
    "audio": ("audio/wav", "audio/mpeg", "audio/mp4", "audio/aac", "audio/ogg", "audio/flac", "audio/webm"),
}
_NO_PLACE = "message part that ATIF has no type for: kept in the step's extra, its place is marked in the text"


class AtifError(GavelError):
    """An attempt cannot be written as an ATIF document."""


def documents(groups: Iterable[StoredGroup], model: str | None, losses: Losses) -> Iterator[Message]:
    """One document per attempt. Raises `AtifError` for a document that the package `atif` rejects."""
    for attempt in all_attempts(groups, losses):
        yield _validated(_build_document(attempt, model, losses), attempt)


def _build_document(attempt: StoredAttempt, model: str | None, losses: Losses) -> Message:
    main, *others = attempt.trajectory.histories()
    known = facts(attempt, losses)
    document = _build_conversation(main, attempt.agent, model, losses)
    status, reason = attempt.trajectory.status, attempt.trajectory.status_reason
    if status != "finished":
        losses.add("attempt that did not finish: its status stands in the document's notes, ATIF has no field for it")
        document["notes"] = f"{status}: {losses.text(reason or 'no reason is recorded')}"
    numbers = {"reward": attempt.reward, **known.get("metrics", {})}
    document |= {
        "session_id": attempt.place.id,
        "trajectory_id": attempt.id,
        "final_metrics": {
            "total_steps": len(document["steps"]),
            "extra": {name: value for name, value in numbers.items() if value is not None} or None,
        },
        "extra": {"gavel": known},
    }
    if others:
        document["subagent_trajectories"] = [
            {
                **_build_conversation(other, other.agent or attempt.agent, model, losses),
                "trajectory_id": f"{attempt.id}/{number}",
            }
            for number, other in enumerate(others, 1)
        ]
    return document


def _build_conversation(history: History, agent: str, model: str | None, losses: Losses) -> Message:
    steps: list[Message] = []
    answered: Message | None = None
    """The step to which results may follow."""
    for turn in turns(history, losses):
        if turn.role == "tool":
            if answered is None:
                answered = {"step_id": len(steps) + 1, "source": "system", "message": ""}
                steps.append(answered)
            answered.setdefault("observation", {"results": []})["results"].append(_result_of(turn, answered, losses))
            continue
        steps.append(_step(len(steps) + 1, turn, losses))
        answered = steps[-1] if turn.role == "assistant" else None
    definitions = tool_definitions(history, losses)
    return {
        "schema_version": SCHEMA_VERSION,
        "agent": {
            "name": losses.text(agent),
            "version": version("gavel-rl"),
            "model_name": model,
            "tool_definitions": definitions or None,
        },
        "steps": steps,
    }


def _step(number: int, turn: Turn, losses: Losses) -> Message:
    extra = turn.beside
    step: Message = {"step_id": number, "source": _SOURCES[turn.role], "message": _content_of(turn, extra, losses)}
    if turn.role == "assistant":
        step["reasoning_content"] = turn.reasoning or None
        step["tool_calls"] = [_call_of(call, number, place, losses) for place, call in enumerate(turn.calls)] or None
        if turn.sampled is not None:
            step["metrics"] = _metrics(turn.sampled)
            extra |= {"sampled": True, "finish_reason": turn.sampled.finish_reason, **turn.sampled.rest}
    elif turn.calls or turn.reasoning:
        losses.add("reasoning or tool call of a message that is not the agent's: kept in the step's extra")
        extra["tool_calls"] = [[call.id, call.name, call.arguments] for call in turn.calls]
        extra["reasoning_content"] = turn.reasoning
    return {**step, "extra": extra or None}


def _call_of(call: Call, step: int, place: int, losses: Losses) -> Message:
    values, extra = call.values, dict(call.rest)
    if values is None:
        losses.add("tool call whose arguments are no JSON object: kept as text in the call's extra")
        extra["arguments"] = call.arguments
    if call.id is None:
        losses.add("tool call without an id: it is given one")
    return {
        "tool_call_id": call.id if call.id is not None else f"call-{step}-{place}",
        "function_name": call.name,
        "arguments": values or {},
        "extra": extra or None,
    }


def _result_of(turn: Turn, step: Message, losses: Losses) -> Message:
    extra = turn.beside
    calls = [call["tool_call_id"] for call in step.get("tool_calls") or ()]
    known = turn.call_id if turn.call_id in calls else None
    if turn.call_id is not None and known is None:
        losses.add("tool result that answers no call of the step before it: its call's id is kept in its extra")
        extra["tool_call_id"] = turn.call_id
    content = _content_of(turn, extra, losses)
    return {"source_call_id": known, "content": content, "extra": extra or None}


def _metrics(sampled: Sampled) -> Message:
    extra = {} if sampled.policy_version is None else {"policy_version": sampled.policy_version}
    return {
        "prompt_tokens": None if sampled.prompt_ids is None else len(sampled.prompt_ids),
        "completion_tokens": None if sampled.ids is None else len(sampled.ids),
        "prompt_token_ids": sampled.prompt_ids,
        "completion_token_ids": sampled.ids,
        "logprobs": sampled.logprobs,
        "extra": extra or None,
    }


def _content_of(turn: Turn, extra: Message, losses: Losses) -> str | list[Message]:
    if turn.is_text and len(turn.parts) < 2:
        return turn.text
    kept: list[Any] = []
    content = [_write_part(part, kept, losses) for part in turn.parts]
    if kept:
        extra["parts"] = kept
    return content


def _write_part(part: Part, kept: list[Any], losses: Losses) -> Message:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Media() if part.mime in _MEDIA_TYPES[part.kind]:
            return {"type": part.kind, "source": {"media_type": part.mime, "path": part.url}}
        case Media():
            kept.append({"kind": part.kind, "url": part.url, "mime": part.mime})
            losses.add(f"{part.kind} whose media type ATIF does not list: kept in the step's extra")
            return {"type": "text", "text": f"[{part.kind}]"}
        case _:
            kept.append(part.part)
            losses.add(_NO_PLACE)
            return {"type": "text", "text": f"[{part.kind}]"}


def _validated(document: Message, attempt: StoredAttempt) -> Message:
    try:
        return atif.Trajectory.model_validate(document).to_json_dict()
    except ValidationError as error:
        problem = f"the attempt {attempt.id} is no valid ATIF document: {_problem(error)}"
        raise AtifError(problem, "Export it in another --format.") from error
