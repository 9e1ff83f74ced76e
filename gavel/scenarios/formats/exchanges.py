"""Logs of calls to language models: in each row a request and its response, as proxies and clouds write them.

    {"request": {"messages": […]}, "response": {"choices": […]}}             proxies; Gemini's and Vertex's batches
    {"messages": […], "response": {"choices": […]}, "model": …}              LiteLLM
    {"modelInput": {…}, "modelOutput": {…}, "recordId": …}                   Bedrock's batches
    {"input": {"inputBodyJson": {…}}, "output": {"outputBodyJson": {…}}}     Bedrock's invocation log
    {"instruction": "Sum up.", "input": "The text", "output": "A summary"}   instruction data, evaluation tools, dumps

Each choice is an attempt. Requests that failed are counted, not judged.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats import bodies, chat, payloads
from gavel.scenarios.formats.checks import trajectory
from gavel.scenarios.formats.row import Attempt, Format, Row, Source, is_object
from gavel.scenarios.formats.text import cell

_PAIRS = (("request", "response"), ("modelInput", "modelOutput"), ("request_body", "response_body"))
_ANSWERS = "choices|candidates|content|output|error"


def _read(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        request, response, used = _halves(row.value) or ({}, {}, ())
        found = bodies.answered(response)
        if found.problem:
            source.left_out[f"request failed ({found.problem})"] += 1
        before = bodies.asked(request)
        prompt = len(chat.messages(before, row.where)[0]) if found.attempts else 0
        rest = {name: value for name, value in row.value.items() if name not in used}
        for answer in found.attempts:
            said, _ = chat.messages([*before, *answer], row.where)
            attempt = trajectory(said, row.where, tools=bodies.tools(request), fields=rest, **found.ended)
            yield Attempt(attempt, row, EXCHANGES.name, prompt=prompt)


def _halves(value: Any) -> tuple[Message, Any, tuple[str, ...]] | None:
    """The request, the response, and the fields of the row that held them; None when it holds no exchange."""
    if not is_object(value):
        return None
    for asked, answered in _PAIRS:
        request, response = _body(value.get(asked)), _body(value.get(answered))
        if bodies.is_request(request) and (answered in value or "error" in value):
            return request, response, (asked, answered)
    given, got = value.get("input"), value.get("output")
    if is_object(given, "inputBodyJson") and bodies.is_request(given["inputBodyJson"]):
        return given["inputBodyJson"], got.get("outputBodyJson") if is_object(got) else None, ("input", "output")
    response = _body(value.get("response"))
    if bodies.is_request(value) and is_object(response, _ANSWERS) and "role" not in response:
        return value, response, (*bodies.QUESTIONS, "response", "tools", "system", "systemInstruction")
    return None


def _body(value: Any) -> Any:
    """A body, also of a log that keeps it as its JSON text, or under `body`."""
    body = cell(value) if isinstance(value, str) else value
    return body["body"] if is_object(body, "body") and is_object(body["body"]) else body


EXCHANGES = Format(
    "requests with responses",
    ("request|modelInput", "response|modelOutput"),
    lambda value: _halves(value) is not None,
    _read,
)


_NAMES = (("input", "output"), ("inputs", "outputs"))


def _read_logged(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        fields: Message = row.value
        given, answered = next((pair for pair in _NAMES if pair[1] in fields), _NAMES[0])
        asked = fields.get(given)
        if "instruction" in fields:
            asked = "\n\n".join(str(part) for part in (fields["instruction"], asked) if part)
        said = payloads.conversation(asked, fields[answered], row.where)
        before = payloads.conversation(asked, None, row.where)
        if not said:
            source.left_out["row without input and output"] += 1
            continue
        used = (given, answered, "instruction", "tools")
        rest = {name: value for name, value in fields.items() if name not in used}
        found = trajectory(said, row.where, tools=payloads.tools(asked), fields=rest)
        yield Attempt(found, row, LOGGED.name, prompt=len(before) if said[: len(before)] == before else None)


def _is_logged(value: Any) -> bool:
    return is_object(value, "output", "input|instruction") or is_object(value, "inputs", "outputs")


LOGGED = Format("inputs and outputs", ("input|inputs|instruction", "output|outputs"), _is_logged, _read_logged)
