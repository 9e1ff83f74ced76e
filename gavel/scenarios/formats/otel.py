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
    Sampled,
    StoredAttempt,
    StoredGroup,
    Turn,
    all_attempts,
    facts,
    hex_id,
    is_text,
    media_of,
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


def requests(groups: Iterable[StoredGroup], model: str | None, losses: Losses, now_ns: int) -> Iterator[Message]:
    """An ExportTraceServiceRequest for each attempt, with all of its spans. `now_ns`: the time of the export."""
    clock = count(now_ns + _MILLISECOND, _MILLISECOND)
    scope = {"name": "gavel", "version": version("gavel-rl")}
    resource = {"attributes": _attributes({"service.name": "gavel"})}
    for attempt in all_attempts(groups, losses):
        trace = _Trace(hex_id(now_ns, attempt.id, size=16), clock, model, losses)
        trace.add_attempt(attempt)
        yield {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": trace.spans}]}]}


@dataclass(slots=True)
class _Trace:
    """The spans of an attempt under construction."""

    id: str
    clock: Iterator[int]
    """Nanoseconds, advancing by a millisecond each time."""
    model: str | None
    losses: Losses
    spans: list[Message] = field(default_factory=list[Message])

    def _open(self, name: str, kind: int, parent: Message | None, attributes: Mapping[str, Any]) -> Message:
        """Starts a span, which `_close` ends."""
        span: Message = {
            "traceId": self.id,
            "spanId": hex_id(self.id, len(self.spans), size=8),
            **({} if parent is None else {"parentSpanId": parent["spanId"]}),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": str(next(self.clock)),
            "attributes": _attributes(attributes),
        }
        self.spans.append(span)
        return span

    def _close(self, span: Message) -> None:
        span["endTimeUnixNano"] = str(next(self.clock))

    def add_attempt(self, attempt: StoredAttempt) -> None:
        main, *others = attempt.trajectory.histories()
        known = facts(attempt, self.losses)
        root = self._add_history(main, attempt.agent, None)
        root["attributes"] += _attributes({"gavel.attempt": _json(known), "gen_ai.conversation.id": attempt.id})
        for other in others:
            self._close(self._add_history(other, other.agent or attempt.agent, root))
        self._close(root)
        root["events"] = list[Message]()
        for name, value in scores(attempt, known).items():
            scored = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": float(value)}
            if name == "judge" and known["judgement"].get("explanation"):
                scored["gen_ai.evaluation.explanation"] = known["judgement"]["explanation"]
            event = {"timeUnixNano": root["endTimeUnixNano"], "name": "gen_ai.evaluation.result"}
            root["events"].append(event | {"attributes": _attributes(scored)})
        if attempt.trajectory.status == "failed":
            reason = self.losses.text(attempt.trajectory.status_reason or "no reason is recorded")
            root["status"] = {"code": _ERROR, "message": reason}
            root["attributes"] += _attributes({"error.type": "_OTHER"})

    def _add_history(self, history: History, agent: str, parent: Message | None) -> Message:
        """The open span of a history, with the spans of its turns."""
        agent = self.losses.text(agent)
        common: Message = {"gen_ai.provider.name": "gavel", "gen_ai.request.model": self.model}
        operation = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent}
        span = self._open(f"invoke_agent {agent}", _INTERNAL, parent, operation | common)
        if definitions := tool_definitions(history, self.losses):
            common["gen_ai.tool.definitions"] = _json(definitions)
        opening: list[Message] = []
        seen: list[Message] = []
        answered = 0
        names: dict[str | None, str] = {}
        for turn in turns(history, self.losses):
            message = _convert_message(turn)
            if turn.role == "system" and not seen:
                opening += message["parts"]
                common["gen_ai.system_instructions"] = _json(opening)
                continue
            if turn.role == "assistant":
                names |= {call.id: call.name for call in turn.calls if call.id is not None}
                said = {"gen_ai.input.messages": _json(seen), "gen_ai.output.messages": _json([message])}
                said = {"gen_ai.operation.name": "chat", **common, **said, **self._sampling(turn.sampled)}
                self._close(self._open(f"chat {self.model}" if self.model else "chat", _CLIENT, span, said))
                answered = len(seen) + 1
            elif turn.role == "tool":
                name = turn.name or names.get(turn.call_id) or "unknown"
                called = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
                called |= {"gen_ai.tool.type": "function", "gen_ai.tool.call.id": turn.call_id}
                called["gen_ai.tool.call.result"] = turn.text if turn.is_text else _json(message["parts"])
                self._close(self._open(f"execute_tool {name}", _INTERNAL, span, called))
            seen.append(message)
        instructions = {"gen_ai.system_instructions": common.get("gen_ai.system_instructions")}
        unanswered = {"gavel.unanswered": _json(seen[answered:]) if seen[answered:] else None}
        span["attributes"] += _attributes(instructions | unanswered)
        return span

    def _sampling(self, sampled: Sampled | None) -> Message:
        if sampled is None:
            return {}
        if sampled.prompt_ids is not None:
            self.losses.add("sampled turn with the token ids of its prompt: their number is written")
        reason = sampled.finish_reason
        return {
            "gen_ai.response.finish_reasons": None if reason is None else [_FINISH.get(reason, reason)],
            "gen_ai.usage.input_tokens": None if sampled.prompt_ids is None else len(sampled.prompt_ids),
            "gen_ai.usage.output_tokens": None if sampled.ids is None else len(sampled.ids),
            "gavel.sampled": True,
            "gavel.token_ids": sampled.ids,
            "gavel.logprobs": sampled.logprobs,
            "gavel.policy_version": sampled.policy_version,
            "gavel.choice": _json(sampled.rest) if sampled.rest else None,
        }


def _convert_message(turn: Turn) -> Message:
    """A message in the conventions' schema, which allows further fields of parts and messages."""
    parts: list[Message] = [{"type": "reasoning", "content": turn.reasoning}] if turn.reasoning else []
    shown: list[Message] = list(map(_convert_part, turn.parts))
    if turn.role == "tool":
        shown = [{"type": "tool_call_response", "id": turn.call_id, "response": turn.text if turn.is_text else shown}]
    for call in turn.calls:
        arguments = call.arguments if call.values is None else call.values
        shown.append(call.rest | {"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments})
    rest = {name: value for name, value in turn.rest.items() if name != "parts"}
    return {"role": turn.role, **rest, **({"name": turn.name} if turn.name else {}), "parts": parts + shown}


def _convert_part(part: Message) -> Message:
    if is_text(part):
        return {"type": "text", "content": part["text"]}
    if (media := media_of(part)) is None:
        return part
    modality, url, mime = media
    kind = {"modality": modality, **({"mime_type": mime} if mime else {})}
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return {"type": "blob", **kind, "content": data}
    return {"type": "uri", **kind, "uri": url}


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
        self._name = f"the collector at {parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
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
        number = 0
        while True:
            number += 1
            try:
                answer = self._client.post(self._url, content=content)
            except httpx.HTTPError as error:
                problem = f"{self._name} does not answer: {str(error) or type(error).__name__}"
                raise OtlpError(problem, "Start it, or give -o FILE.jsonl.") from error
            if answer.status_code not in _PASSING or number == _TRIES:
                break
            said = answer.headers.get("retry-after", "")
            time.sleep(min(float(said) if said.isdecimal() else 2.0 ** (number - 1), _LONGEST_WAIT))
        if not answer.is_success:
            remedy = "Check the address, and OTEL_EXPORTER_OTLP_HEADERS for its key."
            if answer.status_code == _TOO_LARGE:
                remedy = f"An attempt takes {len(content):,} bytes: raise the collector's limit, or give -o FILE.jsonl."
            told = " ".join(answer.text.split())[:200]
            raise OtlpError(f"{self._name} answered {answer.status_code}: {told}", remedy)
        match loaded(answer.text):
            case {"partialSuccess": {"rejectedSpans": rejected, **rest}} if int(rejected or 0):
                why = rest.get("errorMessage") or "no reason"
                raise OtlpError(f"{self._name} refused spans: {why}", "Its log says why.")
            case _:
                return


def _headers() -> dict[str, str]:
    """Parses headers as the SDK does: `key=value` pairs between commas, percent-encoded."""
    given = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or os.environ.get("OTEL_EXPORTER_OTLP_HEADERS") or ""
    pairs = (pair.partition("=") for pair in given.split(",") if "=" in pair)
    return {name.strip().lower(): unquote(value.strip()) for name, _, value in pairs}
