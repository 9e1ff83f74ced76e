"""Spans after OpenTelemetry's conventions for generative AI, in OTLP's JSON form: a trace for each attempt.

    invoke_agent agent        the attempt: scores as events gen_ai.evaluation.result, the rest in gavel.attempt
      chat model              a turn of the agent, with the history that it saw
      execute_tool refund     a tool's result
      invoke_agent searcher   a further history

A trajectory has no times, so spans follow at intervals of a millisecond from the export on. Ids derive from an
attempt's position and the export's time: a collector treats a second export as new traces.

`OtlpEndpoint` sends them to a collector over HTTP. Headers from the SDK's environment variables (keys of a hosted
collector) are sent, and never printed.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import count
from typing import Any, Self, cast
from urllib.parse import unquote, urlsplit

import httpx

from gavel.base.errors import GavelError
from gavel.base.network import is_on_this_machine
from gavel.llm.types import Message
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
    inline,
    scores,
    tool_definitions,
    turns,
)
from gavel.scenarios.formats.row import loaded
from gavel.scenarios.trajectory import History

_MILLISECOND = 1_000_000
_INTERNAL, _CLIENT, _ERROR = 1, 3, 2
"""Numbers of span kinds and of a status, as OTLP's JSON has them."""
_FINISH = {"tool_calls": "tool_call", "function_call": "tool_call"}
_PROVIDER = "gavel"


@dataclass(slots=True)
class _Trace:
    """The spans of an attempt under construction."""

    id: str
    clock: Iterator[int]
    """Nanoseconds, advancing by a millisecond each time."""
    model: str | None
    losses: Losses
    spans: list[Message] = field(default_factory=list[Message])

    def open(self, name: str, kind: int, parent: Message | None, attributes: Mapping[str, Any]) -> Message:
        """Starts a span, which `close` ends."""
        span: Message = {
            "traceId": self.id,
            "spanId": hex_id(self.id, len(self.spans), size=8),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": str(next(self.clock)),
            "attributes": _attributes(attributes),
        }
        if parent is not None:
            span["parentSpanId"] = parent["spanId"]
        self.spans.append(span)
        return span

    def close(self, span: Message) -> None:
        span["endTimeUnixNano"] = str(next(self.clock))


def requests(groups: Iterable[StoredGroup], model: str | None, losses: Losses, now_ns: int) -> Iterator[Message]:
    """An ExportTraceServiceRequest for each attempt, with all of its spans. `now_ns`: the time of the export."""
    clock = count(now_ns + _MILLISECOND, _MILLISECOND)
    scope = {"name": "gavel", "version": version("gavel-rl")}
    resource = {"attributes": _attributes({"service.name": "gavel"})}
    for attempt in all_attempts(groups, losses):
        trace = _Trace(hex_id(now_ns, attempt.id, size=16), clock, model, losses)
        _add_attempt(attempt, trace)
        yield {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": trace.spans}]}]}


def _add_attempt(attempt: StoredAttempt, trace: _Trace) -> None:
    main, *others = attempt.trajectory.histories()
    known = facts(attempt, trace.losses)
    root = _add_agent_spans(
        main, attempt.agent, None, trace, {"gavel.attempt": _json(known), "gen_ai.conversation.id": attempt.id}
    )
    for other in others:
        _add_agent_spans(other, other.agent or attempt.agent, root, trace, {})
    trace.close(root)
    root["events"] = list(_evaluations(attempt, known, root["endTimeUnixNano"]))
    if attempt.trajectory.status == "failed":
        reason = trace.losses.text(attempt.trajectory.status_reason or "no reason is recorded")
        root["status"] = {"code": _ERROR, "message": reason}
        root["attributes"] += _attributes({"error.type": "_OTHER"})


def _evaluations(attempt: StoredAttempt, known: Message, time: str) -> Iterator[Message]:
    judgement: Message = known.get("judgement") or {}
    for name, value in scores(attempt, known).items():
        attributes = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": float(value)}
        if name == "judge" and judgement.get("explanation"):
            attributes["gen_ai.evaluation.explanation"] = judgement["explanation"]
        yield {"timeUnixNano": time, "name": "gen_ai.evaluation.result", "attributes": _attributes(attributes)}


def _add_agent_spans(
    history: History, agent: str, parent: Message | None, trace: _Trace, more: Mapping[str, Any]
) -> Message:
    """The span of a history, with its turns' spans; the main history's stays open."""
    agent = trace.losses.text(agent)
    common = {"gen_ai.provider.name": _PROVIDER, "gen_ai.request.model": trace.model}
    operation = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent}
    span = trace.open(f"invoke_agent {agent}", _INTERNAL, parent, {**operation, **common, **more})
    definitions = tool_definitions(history, trace.losses)
    tools = {"gen_ai.tool.definitions": _json(definitions)} if definitions else {}
    opening: list[str] = []
    seen: list[Message] = []
    names: dict[str, str] = {}
    for turn in turns(history, trace.losses):
        message = _convert_message(turn)
        if turn.role == "system" and not seen:
            opening += map(_json, message["parts"])
            continue
        if turn.role == "assistant":
            names |= {call.id: call.name for call in turn.calls if call.id is not None}
            _add_chat_span(turn, message, seen, opening, span, trace, {**common, **tools})
        elif turn.role == "tool":
            _tool(turn, message, names, span, trace)
        seen.append(message)
    if opening:
        span["attributes"] += _attributes({"gen_ai.system_instructions": f"[{','.join(opening)}]"})
    if seen and seen[-1]["role"] != "assistant":
        rest = next((n for n, each in enumerate(reversed(seen)) if each["role"] == "assistant"), len(seen))
        span["attributes"] += _attributes({"gavel.unanswered": _json(seen[len(seen) - rest :])})
    if parent is not None:
        trace.close(span)
    return span


def _add_chat_span(
    turn: Turn,
    message: Message,
    seen: list[Message],
    opening: list[str],
    parent: Message,
    trace: _Trace,
    common: Mapping[str, Any],
) -> None:
    sampled = turn.sampled
    reason = None if sampled is None else _FINISH.get(sampled.finish_reason or "", sampled.finish_reason)
    attributes: Message = {
        "gen_ai.operation.name": "chat",
        **common,
        "gen_ai.system_instructions": f"[{','.join(opening)}]" if opening else None,
        "gen_ai.input.messages": _json(seen),
        "gen_ai.output.messages": _json([message]),
        "gen_ai.response.finish_reasons": None if reason is None else [reason],
    }
    if sampled is not None:
        attributes |= {
            "gen_ai.usage.input_tokens": None if sampled.prompt_ids is None else len(sampled.prompt_ids),
            "gen_ai.usage.output_tokens": None if sampled.ids is None else len(sampled.ids),
            "gavel.sampled": True,
            "gavel.token_ids": sampled.ids,
            "gavel.logprobs": sampled.logprobs,
            "gavel.policy_version": sampled.policy_version,
            "gavel.choice": _json(sampled.rest) if sampled.rest else None,
        }
        if sampled.prompt_ids is not None:
            trace.losses.add("sampled turn with the token ids of its prompt: their number is written")
    name = f"chat {trace.model}" if trace.model else "chat"
    trace.close(trace.open(name, _CLIENT, parent, attributes))


def _tool(turn: Turn, message: Message, names: Mapping[str, str], parent: Message, trace: _Trace) -> None:
    name = turn.name or names.get(turn.call_id or "")
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name or "unknown",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": turn.call_id,
        "gen_ai.tool.call.result": turn.text if turn.is_text else _json(message["parts"]),
    }
    trace.close(trace.open(f"execute_tool {name or 'unknown'}", _INTERNAL, parent, attributes))


def _convert_message(turn: Turn) -> Message:
    """A message in the conventions' schema, which allows further fields of parts and messages."""
    parts: list[Message] = [{"type": "reasoning", "content": turn.reasoning}] if turn.reasoning else []
    if turn.role == "tool":
        shown: Any = turn.text if turn.is_text else list(map(_part, turn.parts))
        parts.append({"type": "tool_call_response", "id": turn.call_id, "response": shown})
    else:
        parts += map(_part, turn.parts)
    for call in turn.calls:
        values = call.values
        parts.append(
            {
                "type": "tool_call",
                "id": call.id,
                "name": call.name,
                "arguments": call.arguments if values is None else values,
                **{name: value for name, value in call.rest.items() if name != "type"},
            }
        )
    rest = {name: value for name, value in turn.rest.items() if name != "parts"}
    return {"role": turn.role, **rest, **({"name": turn.name} if turn.name else {}), "parts": parts}


def _part(part: Part) -> Message:
    match part:
        case Text():
            return {"type": "text", "content": part.text}
        case Media():
            mime = {"mime_type": part.mime} if part.mime else {}
            if (data := inline(part)) is not None:
                return {"type": "blob", "modality": part.kind, **mime, "content": data}
            return {"type": "uri", "modality": part.kind, **mime, "uri": part.url}
        case _:
            return part.fields


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _attributes(values: Mapping[str, Any]) -> list[Message]:
    """Key and value pairs in OTLP's JSON form, without None values."""
    return [{"key": name, "value": _value(value)} for name, value in values.items() if value is not None]


def _value(value: Any) -> Message:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(each) for each in cast("list[Any]", value)]}}
        case _:
            return {"stringValue": str(value)}


_SECONDS = 60.0
_TRIES = 4
_PASSING = (429, 502, 503, 504)
"""Retryable statuses of OTLP."""
_LONGEST_WAIT = 30.0
_TOO_LARGE = 413


class OtlpError(GavelError):
    """A collector rejects spans."""


class OtlpEndpoint:
    """The collector at an address; `/v1/traces` is added where it has no path."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._shown = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
        self._url = address if parts.path.strip("/") else f"{address.rstrip('/')}/v1/traces"
        headers = {"content-type": "application/json", **_headers()}
        self._client = httpx.Client(timeout=_SECONDS, headers=headers, trust_env=not is_on_this_machine(address))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def send(self, request: Message) -> None:
        """Sends the spans; retries while the collector is busy. Raises `OtlpError`."""
        content = _json(request).encode()
        answer = self._post(content)
        for number in range(_TRIES - 1):
            if answer.status_code not in _PASSING:
                break
            said = answer.headers.get("retry-after", "")
            time.sleep(min(float(said) if said.isdecimal() else 2.0**number, _LONGEST_WAIT))
            answer = self._post(content)
        if not answer.is_success:
            told = " ".join(answer.text.split())[:200]
            remedy = "Check the address, and OTEL_EXPORTER_OTLP_HEADERS for its key."
            if answer.status_code == _TOO_LARGE:
                remedy = f"An attempt takes {len(content):,} bytes: raise the collector's limit, or give -o FILE.jsonl."
            raise OtlpError(f"the collector at {self._shown} answered {answer.status_code}: {told}", remedy)
        match loaded(answer.text):
            case {"partialSuccess": {"rejectedSpans": rejected, **rest}} if int(rejected or 0):
                why = rest.get("errorMessage") or "no reason"
                raise OtlpError(f"the collector at {self._shown} refused spans: {why}", "Its log says why.")
            case _:
                return

    def _post(self, content: bytes) -> httpx.Response:
        try:
            return self._client.post(self._url, content=content)
        except httpx.HTTPError as error:
            raise OtlpError(
                f"the collector at {self._shown} does not answer: {str(error) or type(error).__name__}",
                "Start it, or give -o FILE.jsonl.",
            ) from error


def _headers() -> dict[str, str]:
    """Parses headers as the SDK does: `key=value` pairs between commas, percent-encoded."""
    given = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or os.environ.get("OTEL_EXPORTER_OTLP_HEADERS") or ""
    pairs = (pair.partition("=") for pair in given.split(",") if "=" in pair)
    return {name.strip().lower(): unquote(value.strip()) for name, _, value in pairs}
