"""Output of OpenAI's, Anthropic's and Gemini's batch interfaces, with the input file of questions, if it is beside.

    {"custom_id": "a", "response": {"status_code": 200, "body": {"choices": [{"message": {…}}]}}, "error": null}
    {"custom_id": "a", "result": {"type": "succeeded", "message": {"role": "assistant", "content": [{…}]}}}
    {"key": "a", "response": {"candidates": [{"content": {"role": "model", "parts": [{…}]}}]}}

Each choice is an attempt. Requests that failed are counted, not judged.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.formats import bodies, chat
from gavel.scenarios.formats.checks import trajectory
from gavel.scenarios.formats.row import Attempt, Format, Row, Source, is_list, is_object


def _read(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    requests = _requests(source.paths, {_name(row.value) for row in rows})
    if not requests:
        source.notes.append(
            "the batch's input file is not beside it: the judge does not see what was asked, and only choices of one "
            f"request are compared. Put the input file (JSONL with custom_id and body) into {source.paths[0].parent}."
        )
    for row in rows:
        found, name = _answers(row.value), _name(row.value)
        if found.problem:
            source.left_out[f"request failed ({found.problem})"] += 1
        request = requests.get(name)
        if request is None and requests and not found.problem:
            source.left_out["answer to no request of the input file"] += 1
            continue
        tools = bodies.tools(request) if request else None
        before = bodies.asked(request) if request else []
        prompt = len(chat.messages(before, row.where)[0])
        for answer in found.attempts:
            said, _ = chat.messages([*before, *answer], row.where)
            fields = {"custom_id": name}
            attempt = trajectory(said, row.where, tools=tools, fields=fields, **found.ended)
            yield Attempt(attempt, row, BATCH.name, None if request else dict(fields), prompt if request else None)


def _name(row: Message) -> Any:
    return row.get("custom_id", row.get("key"))


def _answers(row: Message) -> bodies.Answers:
    """What came back for one request."""
    result = row.get("result")
    if is_object(result):
        if result.get("type") == "succeeded" and is_object(result.get("message")):
            return bodies.answered(result["message"])
        return bodies.Answers([], {}, bodies.problem(result.get("error"), str(result.get("type"))))
    response: Message = row.get("response") or {}
    body = response.get("body", response)
    if not is_object(body) or response.get("status_code", 200) != 200 or row.get("error"):
        error = body.get("error") if is_object(body) else None
        return bodies.Answers(
            [], {}, bodies.problem(error or row.get("error"), f"status {response.get('status_code')}")
        )
    return bodies.answered(body)


def _requests(outputs: Sequence[Path], names: set[Any]) -> dict[Any, Message]:
    """The bodies of the requests by their name, from the file beside that holds the most of them."""
    best: dict[Any, Message] = {}
    for directory in dict.fromkeys(path.parent for path in outputs):
        for path in sorted([*directory.glob("*.jsonl"), *directory.glob("*.json")]):
            if path not in outputs and len(found := _bodies(path, names)) > len(best):
                best = found
    return best


def _bodies(path: Path, names: set[Any]) -> dict[Any, Message]:
    """Those of a file with one request on each line, or of a list of requests, alone or under `requests`."""
    found: dict[Any, Message] = {}
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        if path.suffix == ".json":
            whole = _json(lines.read())
            listed = whole.get("requests") if is_object(whole) else whole
            rows: Iterator[Any] = iter(listed if is_list(listed) else [])
        else:
            rows = map(_json, filter(str.strip, lines))
        for row in rows:
            if not is_object(row, "custom_id|key", "body|params|request"):
                return found
            body = row.get("body", row.get("params", row.get("request")))
            if (name := _name(row)) in names and is_object(body):
                found[name] = body
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _fits(value: Any) -> bool:
    if is_object(value, "request"):
        return False
    return is_object(value, "custom_id", "response|result|error") or is_object(value, "key", "response|error")


BATCH = Format("batch output", ("custom_id", "response|result"), _fits, _read, task="custom_id")
