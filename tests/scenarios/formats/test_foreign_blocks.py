"""Conversations of other vendors and SDKs are the same chat messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.scenarios.formats import chat
from gavel.scenarios.formats.reading import read_file

SYSTEM, ASKED = {"role": "system", "content": "You run a desk."}, {"role": "user", "content": "Where is order 7?"}
FUNCTION = {"name": "look_up", "arguments": '{"id": 7}'}
SAID = {"role": "assistant", "content": "It is on its way."}
ARGUMENTS, RESULT = {"id": 7}, {"state": "sent"}


def parts(role: str, *given: Any) -> dict[str, Any]:
    return {"role": role, "parts": list(given)}


def blocks(role: str, *given: Any) -> dict[str, Any]:
    return {"role": role, "content": list(given)}


FORMS: list[tuple[str, list[Any]]] = [
    (
        "Gemini contents",
        [
            parts("user", {"text": "Where is order 7?"}),
            parts("model", {"functionCall": {"name": "look_up", "args": ARGUMENTS}}),
            parts("user", {"functionResponse": {"name": "look_up", "response": RESULT}}),
            parts("model", {"text": "It is on its way."}),
        ],
    ),
    (
        "Gemini contents",
        [
            parts("user", {"text": "Where is order 7?"}),
            parts("model", {"function_call": {"id": "c", "name": "look_up", "args": ARGUMENTS}}),
            parts("function", {"function_response": {"id": "c", "name": "look_up", "response": RESULT}}),
            parts("model", {"text": "It is on its way."}),
        ],
    ),
    (
        "Bedrock Converse messages",
        [
            blocks("user", {"text": "Where is order 7?"}, {"cachePoint": {"type": "default"}}),
            blocks("assistant", {"toolUse": {"toolUseId": "t", "name": "look_up", "input": ARGUMENTS}}),
            blocks("user", {"toolResult": {"toolUseId": "t", "content": [{"json": RESULT}], "status": "success"}}),
            blocks("assistant", {"text": "It is on its way."}),
        ],
    ),
    (
        "messages with parts",
        [
            {"id": "1", **parts("user", {"type": "text", "text": "Where is order 7?"})},
            parts(
                "assistant",
                {"type": "step-start"},
                {"type": "tool-look_up", "toolCallId": "t", "state": "output-available", "input": ARGUMENTS}
                | {"output": RESULT},
                {"type": "step-start"},
                {"type": "text", "text": "It is on its way.", "state": "done"},
            ),
        ],
    ),
    (
        "AI SDK messages",
        [
            ASKED,
            {"role": "assistant", "content": "It is on its way."}
            | {
                "toolInvocations": [
                    {"state": "result", "toolCallId": "t", "toolName": "look_up", "args": ARGUMENTS, "result": RESULT}
                ]
            },
        ],
    ),
    (
        "AI SDK messages",
        [
            ASKED,
            blocks("assistant", {"type": "tool-call", "toolCallId": "t", "toolName": "look_up", "input": ARGUMENTS}),
            blocks(
                "tool",
                {"type": "tool-result", "toolCallId": "t", "toolName": "look_up"}
                | {"output": {"type": "json", "value": RESULT}},
            ),
            SAID,
        ],
    ),
    (
        "messages with parts",
        [
            parts("user", {"type": "text", "content": "Where is order 7?"}),
            parts("assistant", {"type": "tool_call", "id": "t", "name": "look_up", "arguments": ARGUMENTS}),
            parts("tool", {"type": "tool_call_response", "id": "t", "response": RESULT}),
            parts("assistant", {"type": "text", "content": "It is on its way."}) | {"finish_reason": "stop"},
        ],
    ),
    (
        "Pydantic AI messages",
        [
            {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Where is order 7?"}]},
            {
                "kind": "response",
                "parts": [{"part_kind": "tool-call", "tool_name": "look_up", "args": ARGUMENTS, "tool_call_id": "t"}],
            },
            {
                "kind": "request",
                "parts": [{"part_kind": "tool-return", "tool_name": "look_up", "content": RESULT, "tool_call_id": "t"}],
            },
            {"kind": "response", "parts": [{"part_kind": "text", "content": "It is on its way."}]},
        ],
    ),
]


@pytest.mark.parametrize(("form", "items"), FORMS)
def test_a_conversation_with_a_tool_is_read(form: str, items: list[Any]) -> None:
    said, name = chat.messages(items, "f:1")
    assert name == form
    asked, called, result, answer = said
    assert (asked["role"], asked["content"]) == ("user", "Where is order 7?")
    (call,) = called["tool_calls"]
    assert (called["role"], call["function"]) == ("assistant", FUNCTION)
    assert (result["role"], result["tool_call_id"], json.loads(result["content"])) == ("tool", call["id"], RESULT)
    assert (answer["role"], answer["content"]) == ("assistant", "It is on its way.")


@pytest.mark.parametrize(("form", "items"), FORMS)
@pytest.mark.parametrize("holder", ["messages", "contents", "conversation", None])
def test_files_of_them_are_grouped_by_what_was_asked(
    tmp_path: Path, form: str, items: list[Any], holder: str | None
) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [items, items] if holder is None else [{holder: items}, {holder: items}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_file(path).summary == f"reads as: {form}, 2 rows in 1 group by opening messages"


@pytest.mark.parametrize(
    "row",
    [
        {"systemInstruction": {"parts": [{"text": "You run a desk."}]}, "contents": FORMS[0][1]},
        {"system_instruction": "You run a desk.", "contents": FORMS[0][1]},
        {"system": [{"text": "You run a desk."}], "messages": FORMS[2][1]},
        {"system_prompt": "You run a desk.", "messages": [ASKED, SAID]},
        {"messages": [{"kind": "request", "parts": [{"part_kind": "system-prompt", "content": "You run a desk."}]}]},
    ],
)
def test_the_system_s_instruction_stands_first(tmp_path: Path, row: dict[str, Any]) -> None:
    path = tmp_path / "row.json"
    path.write_text(json.dumps(row))
    (group,) = read_file(path).groups
    assert group.trajectories[0].messages()[0] == SYSTEM
    assert group.trajectories[0].metadata == {}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (parts("model", {"text": "Hm.", "thought": True}, {"text": "Yes."}), ("Yes.", "Hm.")),
        (
            blocks("assistant", {"reasoningContent": {"reasoningText": {"text": "Hm."}}}, {"text": "Yes."}),
            ("Yes.", "Hm."),
        ),
        (parts("assistant", {"type": "reasoning", "text": "Hm."}, {"type": "text", "text": "Yes."}), ("Yes.", "Hm.")),
    ],
)
def test_thoughts_stand_apart(message: dict[str, Any], expected: tuple[str, str]) -> None:
    ((said,), _) = chat.messages([message], "f:1")
    assert (said["content"], said["reasoning_content"]) == expected


@pytest.mark.parametrize(
    "message",
    [
        parts("user", {"fileData": {"fileUri": "gs://x", "mimeType": "video/mp4"}}),
        parts("user", {"text": "Look:"}, {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}}),
        parts("user", {"type": "file", "mediaType": "application/pdf", "url": "https://x"}),
        blocks("user", {"text": "Read:"}, {"document": {"format": "pdf", "source": {"bytes": "JVBERi0="}}}),
    ],
)
def test_what_has_no_counterpart_stays_as_it_is(message: dict[str, Any]) -> None:
    ((said,), _) = chat.messages([message], "f:1")
    given = message.get("parts") or message["content"]
    assert given[-1] in said["content"]
