"""Samples of Inspect logs (`.eval`, or `.json`): messages, scores, and the sample's id, whose epochs are a group.

    {"id": 1, "epoch": 2, "input": "…", "target": "42", "messages": [{…}], "scores": {"match": {"value": "C"}}}

Scores are metrics by their scorer's name; a single one is the independent reward. The target is the reference.

Writing, as far as Inspect's viewer reads a log: a sampled turn is an event `model`, with its log-probs; long texts
stand once, among the sample's attachments. Reward, score and metrics become the sample's scores, other facts its
metadata. Inspect ran nothing: the log has no solver, and its times are that of the export.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from gavel.llm.types import Message
from gavel.scenarios.formats import fields as columns
from gavel.scenarios.formats.exported import (
    Losses,
    Media,
    Part,
    StoredAttempt,
    StoredGroup,
    Text,
    Turn,
    all_attempts,
    facts,
    hex_id,
    scores,
    tool_functions,
    turns,
)
from gavel.scenarios.formats.row import (
    Attempt,
    Format,
    Row,
    Source,
    as_number,
    first_line,
    is_list,
    is_object,
    with_single_score,
)
from gavel.scenarios.formats.row import tools as openai_tools
from gavel.scenarios.trajectory import History

_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Correct, incorrect, partly correct, no answer."""
_ATTACHED = "attachment://"


def _read(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        sample: Message = row.value
        attachments: Any = sample.get("attachments") or {}
        items = _attached(sample["messages"], attachments) or [{"role": "user", "content": str(sample["input"])}]
        said = [_message(item) if is_object(item, "role") else item for item in items]
        fields = {name: sample[name] for name in ("id", "epoch", "target", "metadata") if sample.get(name) is not None}
        if sample["target"]:
            fields["reference"] = sample["target"]
        given: Message = sample.get("scores") or {}
        if is_object(older := sample.get("score"), "value"):  # logs of 2024 and earlier
            given = {"score": older, **given}
        scores = with_single_score({name: _value(score) for name, score in given.items()})
        more = {"tools": _tools(sample), "metrics": scores, **_ended(sample)}
        yield columns.attempt(row, INSPECT.name, None, said, fields, task={"id": sample["id"]}, **more)


def _attached(value: Any, attachments: Message) -> Any:
    """The value with its attachments (long texts, images), which the log stores separately, in place."""
    if isinstance(value, str) and value.startswith(_ATTACHED):
        return attachments.get(value.removeprefix(_ATTACHED), value)
    if is_list(value):
        return [_attached(each, attachments) for each in value]
    return {name: _attached(each, attachments) for name, each in value.items()} if is_object(value) else value


def _message(message: Message) -> Message:
    found = {name: message[name] for name in ("role", "content", "tool_calls", "tool_call_id") if message.get(name)}
    error = message.get("error")
    return {"content": error["message"] if is_object(error, "message") else "", **found}


def _value(score: Any) -> Any:
    value = score.get("value") if is_object(score) else score
    return _GRADES.get(value, as_number(value)) if isinstance(value, str) else value


def _tools(sample: Message) -> list[Message] | None:
    """The tools offered to the model in its first call."""
    events: list[Any] = sample.get("events") or []
    for event in events:
        if is_object(event, "tools") and event.get("event") == "model":
            return openai_tools(event["tools"])
    return None


def _ended(sample: Message) -> dict[str, Any]:
    if is_object(error := sample.get("error")):
        return {"status": "failed", "status_reason": first_line(error.get("message"))}
    limit = sample.get("limit")
    return {"status": "truncated", "status_reason": f"limit: {limit.get('type')}"} if is_object(limit) else {}


INSPECT = Format(
    "Inspect log",
    ("id", "epoch", "input", "target", "messages"),
    lambda value: is_object(value, "id", "epoch", "input", "target", "messages"),
    _read,
    task="sample id",
)


_LONG = 100
"""Min characters of an event text that is stored as an attachment."""
_STOP = {
    **{"stop": "stop", "length": "max_tokens", "tool_calls": "tool_calls", "function_call": "tool_calls"},
    "content_filter": "content_filter",
}


def log_chunks(
    groups: Iterable[StoredGroup], model: str | None, losses: Losses, *, name: str, created: str
) -> Iterator[str]:
    """The log's text in chunks, one per sample. `created`: ISO 8601; `name`: the log's name in the viewer."""
    spec = {
        **{"eval_id": hex_id(name, created, size=11), "run_id": hex_id(created, name, size=11), "created": created},
        **{"task": losses.text(name), "task_id": hex_id(name, size=11), "dataset": {"name": losses.text(name)}},
        **{"model": model or "none/none", "config": {}},
    }
    head = json.dumps({"version": 2, "status": "success", "eval": spec, "plan": {}})
    yield f'{head[:-1]}, "samples": ['
    total = 0
    for total, attempt in enumerate(all_attempts(groups, losses), 1):
        sample = json.dumps(_build_sample(attempt, model or "none/none", losses, created), allow_nan=False)
        yield f"{',' if total > 1 else ''}\n{sample}"
    results = {"total_samples": total, "completed_samples": total}
    stats = {"started_at": created, "completed_at": created}
    yield f'\n], "results": {json.dumps(results)}, "stats": {json.dumps(stats)}}}\n'


def _build_sample(attempt: StoredAttempt, model: str, losses: Losses, created: str) -> Message:
    trajectory = attempt.trajectory
    main, *others = trajectory.histories()
    known = facts(attempt, losses)
    said = turns(main, losses)
    messages = [_write_message(turn, losses) for turn in said]
    first = next((n for n, turn in enumerate(said) if turn.role == "assistant"), len(said))
    reference = trajectory.metadata.get("reference")
    events = _Events(model, created, losses)
    events.add(main, said, messages)
    for number, other in enumerate(others, 1):
        losses.add("further history of an attempt: written as events, the messages of the sample are the main one's")
        events.begin(number, other.agent or attempt.agent)
        more = turns(other, losses)
        events.add(other, more, [_write_message(turn, losses) for turn in more])
    sample: Message = {
        **{"id": attempt.place.id, "epoch": attempt.member + 1, "uuid": hex_id(attempt.id, created, size=11)},
        **{"input": messages[:first] or "", "target": losses.text(reference) if isinstance(reference, str) else ""},
        **{"messages": messages, "output": _build_output(said, messages, model, losses)},
        **{"scores": _scores(attempt, known), "metadata": {"gavel": known}},
        **{"events": events.events, "attachments": events.attachments},
    }
    if trajectory.status == "failed":
        reason = losses.text(trajectory.status_reason or "no reason is recorded")
        sample["error"] = {"message": reason, "traceback": reason, "traceback_ansi": reason}
    elif trajectory.status == "truncated":
        reason = losses.text(trajectory.status_reason or "truncated")
        sample["limit"] = {"type": "custom", "limit": 1.0, "reason": reason}
    return sample


@dataclass(slots=True)
class _Events:
    """The events of a sample, and their attachments."""

    model: str
    created: str
    losses: Losses
    events: list[Message] = field(default_factory=list[Message])
    attachments: dict[str, str] = field(default_factory=dict[str, str])

    def begin(self, number: int, agent: str) -> None:
        """Sets the agent of the following turns."""
        data = {"history": number, "agent": self.losses.text(agent)}
        self.events.append({"event": "info", "source": "gavel", "timestamp": self.created, "data": data})

    def add(self, history: History, said: Sequence[Turn], messages: Sequence[Message]) -> None:
        """Adds an event for each sampled turn, and for messages after the last sampled turn."""
        tools = [_tool(each) for each in tool_functions(history, self.losses)]
        seen: list[Message] = []
        unseen = False
        for turn, message in zip(said, messages, strict=True):
            short = {**message, "content": self._attached(message["content"])}
            unseen = unseen or turn.sampled is None
            if turn.sampled is not None:
                event = {"event": "model", "model": self.model, "input": list(seen), "tools": tools}
                event |= {"tool_choice": "auto", "config": {}, "timestamp": self.created}
                self.events.append({**event, "output": _build_output([turn], [short], self.model, self.losses)})
                unseen = False
            seen.append(short)
        if unseen or (tools and not any(turn.sampled for turn in said)):
            event = {"event": "model", "model": self.model, "input": seen, "tools": tools, "tool_choice": "none"}
            self.events.append({**event, "config": {}, "timestamp": self.created, "output": {"model": self.model}})

    def _attached(self, value: Any) -> Any:
        """A message's content, with its long texts moved to the attachments."""
        match value:
            case str() if len(value) > _LONG:
                name = hex_id(value, size=16)
                self.attachments[name] = value
                return f"attachment://{name}"
            case list():
                return [self._attached(each) for each in cast("list[Any]", value)]
            case dict():
                return {name: self._attached(each) for name, each in cast("Message", value).items()}
            case _:
                return value


def _build_output(said: Sequence[Turn], messages: Sequence[Message], model: str, losses: Losses) -> Message:
    """The output of the last sampled turn, with its log-probs."""
    found = [(turn.sampled, message) for turn, message in zip(said, messages, strict=True) if turn.sampled is not None]
    if not found:
        return {"model": model}
    sampled, message = found[-1]
    choice: Message = {"message": message, "stop_reason": _STOP.get(sampled.finish_reason or "", "unknown")}
    if sampled.logprobs is not None:
        tokens = sampled.tokens or [str(each) for each in sampled.ids or ()]
        if len(tokens) == len(sampled.logprobs):
            pairs = zip(tokens, sampled.logprobs, strict=True)
            choice["logprobs"] = {"content": [{"token": token, "logprob": logprob} for token, logprob in pairs]}
    output: Message = {"model": model, "choices": [choice]}
    if sampled.prompt_ids is not None and sampled.ids is not None:
        read, wrote = len(sampled.prompt_ids), len(sampled.ids)
        output["usage"] = {"input_tokens": read, "output_tokens": wrote, "total_tokens": read + wrote}
    kept = {"token_ids": sampled.ids, "prompt_token_ids": sampled.prompt_ids, "policy_version": sampled.policy_version}
    output["metadata"] = {name: value for name, value in {**sampled.rest, **kept}.items() if value is not None}
    return output


def _write_message(turn: Turn, losses: Losses) -> Message:
    content = _content(turn, losses)
    message: Message = {"role": turn.role, "content": content}
    rest = turn.beside
    if turn.role == "assistant":
        message["source"] = None if turn.sampled is None else "generate"
        message["tool_calls"] = [_call(call, place, losses) for place, call in enumerate(turn.calls)] or None
    elif turn.calls:
        rest = {**rest, "tool_calls": [[call.id, call.name, call.arguments] for call in turn.calls]}
        losses.add("tool call of a message that is not the agent's: kept in the message's metadata")
    if turn.role == "tool":
        message |= {"tool_call_id": turn.call_id, "function": turn.name}
    return {name: value for name, value in {**message, "metadata": rest or None}.items() if value is not None}


def _content(turn: Turn, losses: Losses) -> str | list[Message]:
    parts = [_write_part(part, losses) for part in turn.parts]
    if turn.reasoning:
        return [{"type": "reasoning", "reasoning": turn.reasoning}, *parts]
    return turn.text if turn.is_text and len(parts) < 2 else parts


def _write_part(part: Part, losses: Losses) -> Message:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Media(kind="image"):
            return {"type": "image", "image": part.url}
        case Media(mime="audio/wav" | "audio/mpeg"):
            return {"type": "audio", "audio": part.url, "format": "wav" if part.mime == "audio/wav" else "mp3"}
        case Media():
            losses.add("recording that is neither wav nor mp3: written as data")
            return {"type": "data", "data": {"url": part.url, "mime": part.mime}}
        case _:
            losses.add("message part that Inspect has no type for: written as data")
            return {"type": "data", "data": {"part": part.part}}


def _call(call: Any, place: int, losses: Losses) -> Message:
    if call.id is None:
        losses.add("tool call without an id: it is given one")
    values = call.values
    shown: Message = {"id": call.id or f"call-{place}", "function": call.name, "arguments": values or {}}
    if values is None:
        losses.add("tool call whose arguments are no JSON object: they stand beside an error of parsing")
        shown |= {"arguments": {"text": call.arguments}, "parse_error": "the arguments are no JSON object"}
    return {**shown, "type": "custom" if "custom" in call.rest else "function"}


def _tool(body: Message) -> Message:
    parameters: Message = body.get("parameters") or {}
    shown = {name: parameters.get(name) for name in ("properties", "required") if parameters.get(name)}
    return {"name": str(body.get("name") or ""), "description": str(body.get("description") or ""), "parameters": shown}


def _scores(attempt: StoredAttempt, known: Message) -> Message:
    judgement: Message = known.get("judgement") or {}
    found: Message = {name: {"value": value} for name, value in scores(attempt, known).items()}
    if judgement.get("score") is not None:
        found["judge"]["explanation"] = judgement.get("explanation") or None
    return found
