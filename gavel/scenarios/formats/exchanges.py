"""Logs of calls to language models: in each row a request and its response, as proxies and clouds write them.

    {"request": {"messages": […]}, "response": {"choices": […]}}             proxies; Gemini's and Vertex's batches
    {"messages": […], "response": {"choices": […]}, "model": …}              LiteLLM
    {"prompt": "Where?", "choices": [{"text": "Here."}], "model": …}         text completions
    {"modelInput": {…}, "modelOutput": {…}, "recordId": …}                   Bedrock's batches
    {"input": {"inputBodyJson": {…}}, "output": {"outputBodyJson": {…}}}     Bedrock's invocation log
    {"responses_create_params": {…}, "response": {…}, "reward": 1.0}         NeMo Gym's rollouts
    {"instruction": "Sum up.", "input": "The text", "output": "A summary"}   instruction data, evaluation tools, dumps

Each choice is an attempt. Requests that failed are counted, not judged.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from gavel.llm.types import Message
from gavel.scenarios.formats import bodies, chat, tracers
from gavel.scenarios.formats.row import (
    Attempt,
    Format,
    Row,
    Source,
    as_list,
    first_line,
    is_list,
    is_object,
    loaded,
    trajectory,
)
from gavel.scenarios.formats.text import cell

_PAIRS = (("request", "response"), ("modelInput", "modelOutput"), ("request_body", "response_body"))
_ANSWERS = "choices|candidates|content|output|error"


def _read(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    for row in rows:
        request, response, used = _split_exchange(row.value) or ({}, {}, ())
        fields = {name: value for name, value in row.value.items() if name not in used}
        yield from _make_attempts(row, request, bodies.read_response(response), source, EXCHANGES.name, fields)


def _make_attempts(
    row: Row,
    request: Message,
    answers: bodies.Answers,
    source: Source,
    form: str,
    fields: Message,
    task: dict[str, JsonValue] | None = None,
) -> Iterator[Attempt]:
    """One attempt for each answer; failed requests are counted. Without a `request` the prompt is unknown."""
    if answers.problem:
        unread = answers.problem == bodies.UNREAD
        source.left_out[f"{'response not read' if unread else 'request failed'} ({answers.problem})"] += 1
    if not answers.attempts:
        return
    prompts = request.get("prompt")
    if is_list(prompts) and prompts and not any(isinstance(each, str | dict) for each in prompts):
        source.left_out["request whose prompt is token ids: its text is not known"] += len(answers.attempts)
        return
    for number, answer in enumerate(answers.attempts):
        if is_list(prompts) and prompts and all(isinstance(each, str) for each in prompts):  # each has as many choices
            request = {**request, "prompt": prompts[number * len(prompts) // len(answers.attempts)]}
        before = bodies.read_request(request) if request else []
        prompt = len(chat.messages(before, row.where)[0]) if request else None
        said, _ = chat.messages([*before, *answer], row.where)
        made = trajectory(said, row.where, tools=bodies.tools(request), fields=dict(fields), **answers.ended)
        yield Attempt(made, row, form, task, prompt)


def _split_exchange(value: Any) -> tuple[Message, Any, tuple[str, ...]] | None:
    """The request, the response, and the row's fields that held them; None if it holds no exchange."""
    if not is_object(value):
        return None
    for asked, answered in _PAIRS:
        request, response = _body(value.get(asked)), _body(value.get(answered))
        if bodies.is_request(request) and (answered in value or "error" in value):
            return request, response, (asked, answered)
    if is_object(value, "prompt") and "messages" not in value and is_list(value.get("choices")):
        return value, value, ("prompt", "choices")
    given, got = value.get("input"), value.get("output")
    if is_object(given, "inputBodyJson") and bodies.is_request(given["inputBodyJson"]):
        return given["inputBodyJson"], got.get("outputBodyJson") if is_object(got) else None, ("input", "output")
    response = _body(value.get("response"))
    if bodies.is_request(value) and is_object(response, _ANSWERS) and "role" not in response:
        return value, response, (*bodies.QUESTIONS, "response", "tools", "system", "systemInstruction")
    return None


def _body(value: Any) -> Any:
    """A body, possibly stored as JSON text or under `body`."""
    body = cell(value) if isinstance(value, str) else value
    return body["body"] if is_object(body, "body") and is_object(body["body"]) else body


EXCHANGES = Format(
    "requests with responses",
    ("request|modelInput", "response|modelOutput"),
    lambda value: _split_exchange(value) is not None,
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
        said = tracers.conversation(asked, fields[answered], row.where)
        before = tracers.conversation(asked, None, row.where)
        if not said:
            source.left_out["row without input and output"] += 1
            continue
        used = (given, answered, "instruction", "tools")
        rest = {name: value for name, value in fields.items() if name not in used}
        found = trajectory(said, row.where, tools=tracers.offered_tools(asked), fields=rest)
        yield Attempt(found, row, LOGGED.name, prompt=len(before) if said[: len(before)] == before else None)


LOGGED = Format(
    "inputs and outputs",
    ("input|inputs|instruction", "output|outputs"),
    lambda value: is_object(value, "output", "input|instruction") or is_object(value, "inputs", "outputs"),
    _read_logged,
)


_ASKED, _FAILURE, _TASK = "responses_create_params", "_ng_failure_class", "_ng_task_index"
_NOT_KEPT = (_ASKED, "response", "ng_trajectory", "ng_perf", "ng_model_call_capture", "ng_agent_observations")


def _read_rollouts(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    """NeMo Gym's rollouts, and those of its sidecar of failures.

    A masked sample, whose environment declares its reward invalid, counts as failed.
    """
    for row in rows:
        value: Message = row.value
        request, response = value[_ASKED], value.get("response")
        before = bodies.read_request(request)
        found = bodies.read_response(response)
        answer = found.attempts[0] if found.attempts else []
        if answer and all(map(is_list, answer)):
            answer = max(answer, key=len)  # transitions, each of which repeats the conversation so far
        ended: dict[str, Any] = found.ended
        if found.problem or value.get("mask_sample") is True or _FAILURE in value:
            reasons = (value.get(name) for name in ("failure_reason", "_ng_failure_message", _FAILURE, "failure_kind"))
            reason = next(filter(None, reasons), found.problem or "its sample is masked")
            ended = {"status": "failed", "status_reason": first_line(reason)}
        fields = {name: each for name, each in value.items() if name not in _NOT_KEPT and each is not None}
        if fields.get("expected_answer") is not None:
            fields.setdefault("reference", fields["expected_answer"])
        said, _ = chat.messages([*before, *answer], row.where)
        if not any(message.get("content") or message.get("tool_calls") for message in said):
            source.left_out["rollout without messages"] += 1
            continue
        made = trajectory(said, row.where, tools=bodies.tools(request), fields=fields, **ended)
        prompt = len(chat.messages(before, row.where)[0]) or None
        yield Attempt(made, row, NEMO_GYM.name, {"task": value[_TASK]} if _TASK in value else None, prompt)


NEMO_GYM = Format(
    "NeMo Gym rollouts",
    (_ASKED, "response"),
    lambda value: is_object(value, _ASKED, f"response|{_FAILURE}") and is_object(value[_ASKED]),
    _read_rollouts,
    task="task index",
)


def _read_batch(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    requests = _requests(source.paths, {_name(row.value) for row in rows})
    if not requests:
        source.notes.append(
            "the batch's input file is not beside it: the judge does not see what was asked, and only choices of one "
            f"request are compared. Put the input file (JSONL with custom_id and body) into {source.paths[0].parent}."
        )
    for row in rows:
        found, name = _read_answers(row.value), _name(row.value)
        request = requests.get(name, {})
        if requests and not request and not found.problem:
            source.left_out["answer to no request of the input file"] += 1
            continue
        fields = {"custom_id": name}
        yield from _make_attempts(row, request, found, source, BATCH.name, fields, None if request else fields)


def _name(row: Message) -> Any:
    return row.get("custom_id", row.get("key"))


def _read_answers(row: Message) -> bodies.Answers:
    """The responses to one request."""
    result = row.get("result")
    if is_object(result):
        if result.get("type") == "succeeded" and is_object(result.get("message")):
            return bodies.read_response(result["message"])
        return bodies.Answers([], {}, bodies.problem(result.get("error"), str(result.get("type"))))
    response: Message = row.get("response") or {}
    body, status = response.get("body", response), response.get("status_code", 200)
    if is_object(body) and status == 200 and not row.get("error"):
        return bodies.read_response(body)
    error = body.get("error") if is_object(body) else None
    return bodies.Answers([], {}, bodies.problem(error or row.get("error"), f"status {response.get('status_code')}"))


def _requests(outputs: Sequence[Path], names: set[Any]) -> dict[Any, Message]:
    """The request bodies by name, from the neighbouring file that holds the most of them."""
    best: dict[Any, Message] = {}
    for directory in dict.fromkeys(path.parent for path in outputs):
        for path in sorted([*directory.glob("*.jsonl"), *directory.glob("*.json")]):
            if path not in outputs and len(found := _read_bodies(path, names)) > len(best):
                best = found
    return best


def _read_bodies(path: Path, names: set[Any]) -> dict[Any, Message]:
    """The requests of a file: one per line, or a list, alone or under `requests`."""
    found: dict[Any, Message] = {}
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        if path.suffix == ".json":
            whole = loaded(lines.read())
            rows: Iterable[Any] = as_list(whole.get("requests") if is_object(whole) else whole)
        else:
            rows = map(loaded, filter(str.strip, lines))
        for row in rows:
            if not is_object(row, "custom_id|key", "body|params|request"):
                return found
            body = row.get("body", row.get("params", row.get("request")))
            if (name := _name(row)) in names and is_object(body):
                found[name] = body
    return found


BATCH = Format(
    "batch output",
    ("custom_id", "response|result"),
    lambda value: (
        not is_object(value, "request")
        and (is_object(value, "custom_id", "response|result|error") or is_object(value, "key", "response|error"))
    ),
    _read_batch,
    task="custom_id",
)
