"""Conversations of every vendor become the same OpenAI chat messages."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.scenarios.formats.chat import as_chat, messages
from gavel.scenarios.formats.reading import read_file, read_groups
from gavel.scenarios.formats.row import RowError

ARGUMENTS = '{"order": 7}'


def call(identity: str = "c1", name: str = "look_up", arguments: str = ARGUMENTS) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def expected(**said: Any) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": "You run a desk."},
        {"role": "user", "content": "Where is 7?"},
        {"role": "assistant", "content": None, **said, "tool_calls": [call()]},
        {"role": "tool", "tool_call_id": "c1", "content": "on its way"},
        {"role": "assistant", "content": "On its way."},
    ]


SYSTEM, ASK, ANSWER = expected()[0], expected()[1], expected()[4]
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "on its way"}


def calling(form: Any) -> list[Any]:
    return [SYSTEM, ASK, {"role": "assistant", "content": None, "tool_calls": [form]}, RESULT, ANSWER]


CONVERSATIONS: dict[str, tuple[str, list[Any]]] = {
    "openai": ("OpenAI messages", expected()),
    "arguments as an object": (
        "OpenAI messages",
        calling({"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": {"order": 7}}}),
    ),
    "flat calls": ("OpenAI messages", calling({"id": "c1", "name": "look_up", "arguments": {"order": 7}})),
    "calls as JSON text": ("OpenAI messages", calling(json.dumps(call()))),
    "inspect": (
        "OpenAI messages",
        calling({"id": "c1", "function": "look_up", "arguments": {"order": 7}, "type": "function"}),
    ),
    "null fields": ("OpenAI messages", [{**message, "name": None, "refusal": None} for message in expected()]),
    "anthropic": (
        "Anthropic messages",
        [
            SYSTEM,
            {"role": "user", "content": [{"type": "text", "text": "Where is 7?"}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "look_up", "input": {"order": 7}}],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c1",
                        "content": [{"type": "text", "text": "on its way"}],
                    }
                ],
            },
            ANSWER,
        ],
    ),
    "responses": (
        "OpenAI Responses items",
        [
            {"role": "system", "content": "You run a desk."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Where is 7?"}]},
            {"type": "function_call", "id": "fc1", "call_id": "c1", "name": "look_up", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "c1", "output": "on its way"},
            {
                "type": "message",
                "id": "m1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "On its way.", "annotations": []}],
            },
        ],
    ),
    "langchain": (
        "LangChain messages",
        [
            {"type": "system", "content": "You run a desk."},
            {"type": "human", "content": "Where is 7?", "additional_kwargs": {}, "id": None},
            {"type": "ai", "content": None, "tool_calls": [{"name": "look_up", "args": {"order": 7}, "id": "c1"}]},
            {"type": "tool", "content": "on its way", "tool_call_id": "c1", "status": "success"},
            {"lc": 1, "type": "constructor", "id": ["x", "AIMessage"], "kwargs": {"content": "On its way."}},
        ],
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_every_vendor_s_conversation_becomes_the_same_messages(name: str) -> None:
    form, items = CONVERSATIONS[name]
    found, told = messages(items, "f:1")
    text = [message for message in found if message.get("content") != [{"type": "text", "text": "Where is 7?"}]]
    assert text == [message for message in expected() if len(text) == 5 or message != ASK]
    assert told == form
    assert messages(json.dumps(items), "f:1")[0] == found


def test_sharegpt_turns_with_calls_and_results_are_linked() -> None:
    turns = [
        {"from": "system", "value": "You run a desk."},
        {"from": "human", "value": "Where is 7?"},
        {"from": "function_call", "value": '{"name": "look_up", "arguments": {"order": 7}}'},
        {"from": "observation", "value": "on its way"},
        {"from": "gpt", "value": "On its way."},
    ]
    found, told = messages(turns, "f:1")
    identity = found[2]["tool_calls"][0]["id"]
    assert identity
    assert json.loads(json.dumps(found).replace(identity, "c1")) == expected()
    assert told == "ShareGPT"


def test_older_function_calls_become_tool_calls() -> None:
    items = [
        ASK,
        {"role": "assistant", "content": None, "function_call": {"name": "look_up", "arguments": ARGUMENTS}},
        {"role": "function", "name": "look_up", "content": "on its way"},
    ]
    (_, asked, result), _ = messages(items, "f:1")
    assert asked["tool_calls"][0]["function"] == {"name": "look_up", "arguments": ARGUMENTS}
    assert "function_call" not in asked
    assert result["role"] == "tool"
    assert result["tool_call_id"] == asked["tool_calls"][0]["id"]


def test_thoughts_of_anthropic_and_responses_become_reasoning() -> None:
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "Here."}]
    (said,), _ = messages([{"role": "assistant", "content": blocks}], "f:1")
    assert said == {"role": "assistant", "content": "Here.", "reasoning_content": "Hm."}
    items = [
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Here."}]},
    ]
    (said,), _ = messages(items, "f:1")
    assert said == {"role": "assistant", "content": "Here.", "reasoning_content": "Hm."}


def test_parallel_calls_of_responses_are_one_turn() -> None:
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in (1, 2)]
    outputs = [{"type": "function_call_output", "call_id": f"c{n}", "output": [{"n": n}]} for n in (1, 2)]
    found, _ = messages([*calls, *outputs], "f:1")
    assert [message["role"] for message in found] == ["assistant", "tool", "tool"]
    assert [each["id"] for each in found[0]["tool_calls"]] == ["c1", "c2"]


def test_calls_that_a_vendor_runs_keep_their_place_and_their_fields() -> None:
    items = [{"type": "web_search_call", "id": "w1", "status": "completed", "action": {"type": "search", "query": "q"}}]
    (said,), _ = messages(items, "f:1")
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"action": items[0]["action"]}
    blocks = [
        {"type": "text", "text": "Let me look."},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result", "url": "u"}]},
        {"type": "text", "text": "Found."},
    ]
    found, _ = messages([{"role": "assistant", "content": blocks}], "f:1")
    assert [message["role"] for message in found] == ["assistant", "tool", "assistant"]
    assert found[0]["content"] == "Let me look."
    assert found[1]["content"] == [{"type": "web_search_result", "url": "u"}]


@pytest.mark.parametrize(
    ("item", "kept"),
    [
        (
            user({"type": "input_audio", "input_audio": {"data": "x"}}),
            {"type": "input_audio", "input_audio": {"data": "x"}},
        ),
        (
            user({"type": "document", "source": {"data": "x"}}),
            {"type": "document", "source": {"data": "x"}},
        ),
        (
            {
                "role": "user",
                "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}],
            },
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,x"}},
        ),
        (
            {
                "role": "user",
                "content": [{"type": "input_image", "image_url": "https://x"}, {"type": "input_text", "text": ""}],
            },
            {"type": "image_url", "image_url": {"url": "https://x"}},
        ),
        ({"type": "item_reference", "id": "i"}, {"type": "item_reference", "id": "i"}),
    ],
)
def test_what_is_no_text_stays_in_the_content(item: dict[str, Any], kept: dict[str, Any]) -> None:
    (said,), _ = messages([item], "f:1")
    assert said["content"][0] == kept


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([5], "0: it is no message"),
        ([ASK, {"content": "x"}], "1.role: field required"),
        ([{"from": "narrator", "value": "x"}], "0.from: 'narrator' is no speaker"),
        ("hello", "messages: it is text"),
        ({"role": "user"}, "messages: it is no list"),
    ],
)
def test_what_is_no_message_is_named_with_its_place(items: Any, problem: str) -> None:
    with pytest.raises(RowError, match=f"f:1 cannot be judged: {problem}"):
        messages(items, "f:1")


@pytest.mark.parametrize("name", ["items", "conversation", "conversations"])
def test_other_layouts_of_sharegpt_are_read(tmp_path: Path, name: str) -> None:
    turns = [{"from": "human", "value": "Where?"}, {"from": "gpt", "value": "Here."}]
    pairs = [{"human": "Where?", "assistant": "Here."}]
    for number, items in enumerate([turns, pairs] if name != "items" else [turns]):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json.dumps({"id": "x", name: items}))
        (group,) = read_groups(path)
        assert [(m["role"], m["content"]) for m in group.trajectories[0].messages()] == [
            ("user", "Where?"),
            ("assistant", "Here."),
        ]


@pytest.mark.parametrize(
    ("block", "calls"),
    [
        ({"name": "look_up", "input": {"order": 7}}, 1),
        ({"name": "look_up", "input": {}}, 1),
        ({"name": "look_up", "input": {"order": 8}}, 2),
        ({"name": "refund", "input": {"order": 7}}, 2),
    ],
)
def test_a_block_and_a_call_of_one_id_are_one_where_they_say_the_same(block: dict[str, Any], calls: int) -> None:
    message = {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", **block}], "tool_calls": [call()]}
    (said,) = as_chat([message])
    assert len(said["tool_calls"]) == calls


ASKED = {"role": "user", "content": "Where is order 7?"}
FUNCTION = {"name": "look_up", "arguments": '{"id": 7}'}
SAID = {"role": "assistant", "content": "It is on its way."}
VALUES, STATE = {"id": 7}, {"state": "sent"}


def parts(role: str, *given: Any) -> dict[str, Any]:
    return {"role": role, "parts": list(given)}


def blocks(role: str, *given: Any) -> dict[str, Any]:
    return {"role": role, "content": list(given)}


FORMS: list[tuple[str, list[Any]]] = [
    (
        "Gemini contents",
        [
            parts("user", {"text": "Where is order 7?"}),
            parts("model", {"functionCall": {"name": "look_up", "args": VALUES}}),
            parts("user", {"functionResponse": {"name": "look_up", "response": STATE}}),
            parts("model", {"text": "It is on its way."}),
        ],
    ),
    (
        "Gemini contents",
        [
            parts("user", {"text": "Where is order 7?"}),
            parts("model", {"function_call": {"id": "c", "name": "look_up", "args": VALUES}}),
            parts("function", {"function_response": {"id": "c", "name": "look_up", "response": STATE}}),
            parts("model", {"text": "It is on its way."}),
        ],
    ),
    (
        "Bedrock Converse messages",
        [
            blocks("user", {"text": "Where is order 7?"}, {"cachePoint": {"type": "default"}}),
            blocks("assistant", {"toolUse": {"toolUseId": "t", "name": "look_up", "input": VALUES}}),
            blocks("user", {"toolResult": {"toolUseId": "t", "content": [{"json": STATE}], "status": "success"}}),
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
                {"type": "tool-look_up", "toolCallId": "t", "state": "output-available", "input": VALUES}
                | {"output": STATE},
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
                    {"state": "result", "toolCallId": "t", "toolName": "look_up", "args": VALUES, "result": STATE}
                ]
            },
        ],
    ),
    (
        "AI SDK messages",
        [
            ASKED,
            blocks("assistant", {"type": "tool-call", "toolCallId": "t", "toolName": "look_up", "input": VALUES}),
            blocks(
                "tool",
                {"type": "tool-result", "toolCallId": "t", "toolName": "look_up"}
                | {"output": {"type": "json", "value": STATE}},
            ),
            SAID,
        ],
    ),
    (
        "messages with parts",
        [
            parts("user", {"type": "text", "content": "Where is order 7?"}),
            parts("assistant", {"type": "tool_call", "id": "t", "name": "look_up", "arguments": VALUES}),
            parts("tool", {"type": "tool_call_response", "id": "t", "response": STATE}),
            parts("assistant", {"type": "text", "content": "It is on its way."}) | {"finish_reason": "stop"},
        ],
    ),
    (
        "Pydantic AI messages",
        [
            {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Where is order 7?"}]},
            {
                "kind": "response",
                "parts": [{"part_kind": "tool-call", "tool_name": "look_up", "args": VALUES, "tool_call_id": "t"}],
            },
            {
                "kind": "request",
                "parts": [{"part_kind": "tool-return", "tool_name": "look_up", "content": STATE, "tool_call_id": "t"}],
            },
            {"kind": "response", "parts": [{"part_kind": "text", "content": "It is on its way."}]},
        ],
    ),
]


@pytest.mark.parametrize(("form", "items"), FORMS)
def test_a_conversation_with_a_tool_is_read(form: str, items: list[Any]) -> None:
    said, name = messages(items, "f:1")
    assert name == form
    asked, called, result, answer = said
    assert (asked["role"], asked["content"]) == ("user", "Where is order 7?")
    (call,) = called["tool_calls"]
    assert (called["role"], call["function"]) == ("assistant", FUNCTION)
    assert (result["role"], result["tool_call_id"], json.loads(result["content"])) == ("tool", call["id"], STATE)
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
    ((said,), _) = messages([message], "f:1")
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
    ((said,), _) = messages([message], "f:1")
    given = message.get("parts") or message["content"]
    assert given[-1] in said["content"]


WORDS = [
    "role",
    "content",
    "type",
    "text",
    "id",
    "name",
    "parts",
    "tool_calls",
    "function",
    "arguments",
    "from",
    "value",
    "lc",
    "kwargs",
    "data",
    "call_id",
    "output",
    "input",
    "toolUse",
    "toolResult",
    "functionCall",
    "functionResponse",
    "args",
    "part_kind",
    "summary",
    "user",
    "assistant",
    "tool",
    "message",
    "tool_use",
    "human",
    "ai",
    "reasoning",
    "function_call_output",
    "image_url",
]
JSON = st.recursive(
    st.sampled_from(WORDS) | st.none() | st.booleans() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(st.sampled_from(WORDS), JSON, min_size=1, max_size=5), max_size=3))
def test_a_message_of_any_shape_is_read_or_stays_as_it_is(items: list[dict[str, Any]]) -> None:
    assert all(isinstance(message, dict) for message in as_chat(items))
