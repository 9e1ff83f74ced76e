"""Output of OpenAI's and Anthropic's batch interfaces, with the input file that holds the questions, if it is beside.

    {"custom_id": "a", "response": {"status_code": 200, "body": {"choices": [{"message": {…}}]}}, "error": null}
    {"custom_id": "a", "result": {"type": "succeeded", "message": {"role": "assistant", "content": [{…}]}}}

Each choice is an attempt. Requests that failed are counted, not judged.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.readers import anthropic, chat
from gavel.scenarios.readers.checks import as_message, trajectory
from gavel.scenarios.readers.row import Attempt, Format, Row, Source, is_list, is_object
from gavel.scenarios.readers.tool_calls import tools as openai_tools


def _read(rows: Sequence[Row], source: Source) -> Iterator[Attempt]:
    requests = _requests(source.path, {row.value["custom_id"] for row in rows})
    if not requests:
        source.notes.append(
            "the batch's input file is not beside it: the judge does not see what was asked, and only choices of one "
            f"request are compared. Put the input file (JSONL with custom_id and body) into {source.path.parent}."
        )
    for row in rows:
        answers, ended, reason = _answers(row.value)
        if reason:
            source.left_out[f"request failed ({reason})"] += 1
        request = requests.get(row.value["custom_id"])
        if request is None and requests and not reason:
            source.left_out["answer to no request of the input file"] += 1
            continue
        tools = openai_tools(request.get("tools")) if request else None
        before = _question(request) if request else []
        prompt = len(chat.messages(before, row.where)[0])
        for answer in answers:
            said, _ = chat.messages([*before, *answer], row.where)
            fields = {"custom_id": row.value["custom_id"]}
            found = trajectory(said, row.where, tools=tools, fields=fields, **ended)
            yield Attempt(found, row, BATCH.name, None if request else dict(fields), prompt if request else None)


def _answers(row: Message) -> tuple[list[list[Any]], dict[str, Any], str]:
    """The messages of each answer, how they ended, and why there is none."""
    result = row.get("result")
    if is_object(result):
        if result.get("type") != "succeeded" or not is_object(result.get("message")):
            return [], {}, _problem(result.get("error"), str(result.get("type")))
        ended = {"status": "truncated"} if result["message"].get("stop_reason") == "max_tokens" else {}
        return [[{"role": "assistant", "content": result["message"].get("content")}]], ended, ""
    response: Message = row.get("response") or {}
    body = response.get("body")
    if not is_object(body) or response.get("status_code", 200) != 200:
        error = body.get("error") if is_object(body) else row.get("error")
        return [], {}, _problem(error, f"status {response.get('status_code')}")
    choices = body.get("choices")
    if is_list(choices) and choices and all(is_object(choice, "message") for choice in choices):
        cut = any(choice.get("finish_reason") == "length" for choice in choices)
        return [[choice["message"]] for choice in choices], {"status": "truncated"} if cut else {}, ""
    if is_list(output := body.get("output")):
        return [output], {"status": "truncated"} if body.get("status") == "incomplete" else {}, ""
    return [], {}, "no choices"


def _problem(error: Any, otherwise: str) -> str:
    while is_object(error, "error"):
        error = error["error"]
    return str(error.get("code") or error.get("type") or otherwise) if is_object(error) else otherwise


def _question(request: Message) -> list[Any]:
    """The messages of a request to any of the vendors' interfaces."""
    if "messages" in request:
        return [*anthropic.system(request.get("system")), *as_message(request["messages"], "user")]
    system = request.get("instructions")
    asked = as_message(request.get("input", request.get("prompt", "")), "user")
    return [*([{"role": "system", "content": system}] if system else []), *asked]


def _requests(output: Path, names: set[Any]) -> dict[Any, Message]:
    """The bodies of the requests by their name, from the file beside that holds the most of them."""
    best: dict[Any, Message] = {}
    for path in sorted(output.parent.glob("*.jsonl")):
        if path != output and len(found := _bodies(path, names)) > len(best):
            best = found
    return best


def _bodies(path: Path, names: set[Any]) -> dict[Any, Message]:
    found: dict[Any, Message] = {}
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                row: Any = json.loads(line)
            except (ValueError, RecursionError):
                return found
            if not is_object(row, "custom_id", "body|params"):
                return found
            body = row.get("body", row.get("params"))
            if row["custom_id"] in names and is_object(body):
                found[row["custom_id"]] = body
    return found


def _fits(value: Any) -> bool:
    return is_object(value, "custom_id", "response|result|error")


BATCH = Format("batch output", ("custom_id", "response|result"), _fits, _read, task="custom_id")
