"""Logs of requests with their responses are attempts at what was asked, and failed requests are counted."""

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.scenarios.formats.reading import read_file

ASKED = {"role": "user", "content": "Where?"}
CHAT = {"model": "m", "messages": [ASKED]}
BEDROCK = {"messages": [{"role": "user", "content": [{"text": "Where?"}]}]}
GEMINI = {"contents": [{"parts": [{"text": "Where?"}]}]}


def completion(text: str, why: str = "stop") -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": why, "message": {"role": "assistant", "content": text}}]}


def claude(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}


def candidate(text: str) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP"}]}


def converse(text: str) -> dict[str, Any]:
    return {"output": {"message": {"role": "assistant", "content": [{"text": text}]}}, "stopReason": "end_turn"}


def response(text: str) -> dict[str, Any]:
    return {"output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]}


LOGS: dict[str, Any] = {
    "proxy": lambda text: {"request": CHAT, "response": completion(text)},
    "proxy, as text": lambda text: {"request": json.dumps(CHAT), "response": json.dumps(completion(text))},
    "proxy, with bodies": lambda text: {
        "request": {"url": "/v1", "body": CHAT},
        "response": {"body": completion(text)},
    },
    "Anthropic": lambda text: {"request": CHAT, "response": claude(text)},
    "Responses": lambda text: {"request": {"input": "Where?"}, "response": response(text)},
    "LiteLLM": lambda text: {"id": text, "call_type": "acompletion", **CHAT, "response": completion(text)},
    "Vertex batch": lambda text: {"status": "", "request": GEMINI, "response": candidate(text)},
    "Bedrock batch": lambda text: {"recordId": text, "modelInput": CHAT, "modelOutput": claude(text)},
    "Bedrock log": lambda text: {
        "schemaType": "ModelInvocationLog",
        "timestamp": text,
        "input": {"inputBodyJson": BEDROCK},
        "output": {"outputBodyJson": converse(text)},
    },
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_calls_with_one_request_are_a_group(tmp_path: Path, log: Any) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(log(text)) + "\n" for text in ("one", "two")))
    reading = read_file(path)
    assert reading.summary == "reads as: requests with responses, 2 rows in 1 group by opening messages"
    assert [each.messages()[0]["content"] for each in reading.groups[0]] == ["Where?", "Where?"]
    assert [each.messages()[-1]["content"] for each in reading.groups[0]] == ["one", "two"]
    assert reading.notes == []


@pytest.mark.parametrize("body", [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}, None, {"choices": []}])
def test_failed_requests_are_counted(tmp_path: Path, body: Any) -> None:
    rows = [{"request": CHAT, "response": each} for each in (completion("one", "length"), body)]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reading = read_file(path)
    assert [each.status for group in reading.groups for each in group] == ["truncated"]
    assert reading.notes[0].startswith("left out: 1 × request failed (")


@pytest.mark.parametrize("wrap", [list, lambda rows: {"requests": rows}])
def test_a_batch_finds_its_requests_in_a_json_document(tmp_path: Path, wrap: Any) -> None:
    results = [{"custom_id": str(n), "result": {"type": "succeeded", "message": claude(str(n))}} for n in range(2)]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in results))
    requests = [{"custom_id": str(n), "params": CHAT} for n in range(2)]
    (tmp_path / "requests.json").write_text(json.dumps(wrap(requests), indent=1))
    assert "2 rows in 1 group by opening" in read_file(tmp_path / "results.jsonl").summary


MESSAGES = [{"role": "user", "content": "Where?"}]


@pytest.mark.parametrize(
    ("row", "asked"),
    [
        ({"input": "Where?", "gts": "here", "score": 0.5, "step": 1}, "Where?"),
        ({"instruction": "Where?", "input": ""}, "Where?"),
        ({"instruction": "Sum up.", "input": "A text."}, "Sum up.\n\nA text."),
        ({"input": MESSAGES, "expected": None, "span_attributes": {"type": "llm"}}, "Where?"),
        ({"input": {"question": "Where?"}}, "Where?"),
        ({"input": json.dumps({"messages": MESSAGES})}, "Where?"),
    ],
)
def test_inputs_are_what_was_asked(tmp_path: Path, row: dict[str, Any], asked: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({**row, "output": text}) + "\n" for text in ("one", "two")))
    reading = read_file(path)
    assert reading.summary == "reads as: inputs and outputs, 2 rows in 1 group by opening messages"
    assert [[m["content"] for m in each.messages()] for each in reading.groups[0]] == [[asked, "one"], [asked, "two"]]


@pytest.mark.parametrize(
    "output",
    [
        [{"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "one"}}],
        {"role": "assistant", "content": "one"},
        {"answer": "one"},
    ],
)
def test_outputs_are_what_the_assistant_said(tmp_path: Path, output: Any) -> None:
    path = tmp_path / "row.json"
    path.write_text(json.dumps([{"input": MESSAGES, "output": output}]))
    (group,) = read_file(path).groups
    assert group.trajectories[0].messages() == [*MESSAGES, {"role": "assistant", "content": "one"}]
