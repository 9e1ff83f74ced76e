"""Conversations of every vendor become the same OpenAI chat messages."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gavel.scenarios.formats.chat import as_chat, messages
from gavel.scenarios.formats.reading import read_file
from gavel.scenarios.formats.row import RowError, tools

VALUES, STATE = {"order": 7}, {"state": "sent"}
ARGUMENTS, RESULT = '{"order": 7}', '{"state": "sent"}'
SYSTEM = {"role": "system", "content": "You run a desk."}
ASK = {"role": "user", "content": "Where is 7?"}
ANSWER = {"role": "assistant", "content": "On its way."}


def call(identity: str = "c1", name: str = "look_up", arguments: Any = ARGUMENTS) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(form: Any) -> list[Any]:
    answered = {"role": "tool", "tool_call_id": "c1", "content": RESULT}
    return [SYSTEM, ASK, {"role": "assistant", "content": None, "tool_calls": [form]}, answered, ANSWER]


def parts(role: str, *given: Any) -> dict[str, Any]:
    return {"role": role, "parts": list(given)}


def blocks(role: str, *given: Any) -> dict[str, Any]:
    return {"role": role, "content": list(given)}


def pydantic(kind: str, part: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "parts": [{"part_kind": part, **fields}]}


LOOKS = {"name": "look_up", "args": VALUES}
GEMINI = [
    parts("user", {"text": "Where is 7?"}),
    parts("model", {"functionCall": LOOKS}),
    parts("user", {"functionResponse": {"name": "look_up", "response": STATE}}),
    parts("model", {"text": "On its way."}),
]
BEDROCK = [
    blocks("user", {"text": "Where is 7?"}, {"cachePoint": {"type": "default"}}),
    blocks("assistant", {"toolUse": {"toolUseId": "t", "name": "look_up", "input": VALUES}}),
    blocks("user", {"toolResult": {"toolUseId": "t", "content": [{"json": STATE}], "status": "success"}}),
    blocks("assistant", {"text": "On its way."}),
]
SDK = {"toolCallId": "t", "toolName": "look_up"}
CONVERSATIONS: dict[str, tuple[str, list[Any]]] = {
    "openai": ("OpenAI messages", calling(call())),
    "arguments as an object": ("OpenAI messages", calling(call(arguments=VALUES))),
    "flat calls": ("OpenAI messages", calling({"id": "c1", "name": "look_up", "arguments": VALUES})),
    "calls as JSON text": ("OpenAI messages", calling(json.dumps(call()))),
    "inspect": ("OpenAI messages", calling({"id": "c1", "function": "look_up", "arguments": VALUES})),
    "older function calls": (
        "OpenAI messages",
        [
            ASK,
            {"role": "assistant", "content": None, "function_call": {"name": "look_up", "arguments": ARGUMENTS}},
            {"role": "function", "name": "look_up", "content": RESULT},
            ANSWER,
        ],
    ),
    "roles of calls and results": (
        "OpenAI messages",
        [
            ASK,
            {"role": "tool_call", "content": json.dumps({"name": "look_up", "arguments": VALUES})},
            {"role": "tool_response", "content": RESULT},
            ANSWER,
        ],
    ),
    "null fields": ("OpenAI messages", [{**each, "name": None, "refusal": None} for each in calling(call())]),
    "anthropic": (
        "Anthropic messages",
        [
            SYSTEM,
            blocks("user", {"type": "text", "text": "Where is 7?"}),
            blocks("assistant", {"type": "tool_use", "id": "c1", "name": "look_up", "input": VALUES}),
            blocks("user", {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": RESULT}]}),
            ANSWER,
        ],
    ),
    "responses": (
        "OpenAI Responses items",
        [
            SYSTEM,
            {"type": "message", **blocks("user", {"type": "input_text", "text": "Where is 7?"})},
            {"type": "function_call", "id": "fc1", "call_id": "c1", "name": "look_up", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "c1", "output": RESULT},
            {"type": "message", "id": "m1"}
            | blocks("assistant", {"type": "output_text", "text": "On its way.", "annotations": []}),
        ],
    ),
    "langchain": (
        "LangChain messages",
        [
            {"type": "system", "content": "You run a desk."},
            {"type": "human", "content": "Where is 7?", "additional_kwargs": {}, "id": None},
            {"type": "ai", "content": None, "tool_calls": [{**LOOKS, "id": "c1"}]},
            {"type": "tool", "content": RESULT, "tool_call_id": "c1", "status": "success"},
            {"lc": 1, "type": "constructor", "id": ["x", "AIMessage"], "kwargs": {"content": "On its way."}},
        ],
    ),
    "sharegpt": (
        "ShareGPT",
        [
            {"from": "human", "value": "Where is 7?"},
            {"from": "function_call", "value": '{"name": "look_up", "arguments": {"order": 7}}'},
            {"from": "observation", "value": RESULT},
            {"from": "gpt", "value": "On its way."},
        ],
    ),
    "gemini": ("Gemini contents", GEMINI),
    "gemini in snake case": (
        "Gemini contents",
        [
            GEMINI[0],
            parts("model", {"function_call": {"id": "c", **LOOKS}}),
            parts("function", {"function_response": {"id": "c", "name": "look_up", "response": STATE}}),
            GEMINI[3],
        ],
    ),
    "bedrock": ("Bedrock Converse messages", BEDROCK),
    "parts of the AI SDK": (
        "messages with parts",
        [
            {"id": "1", **parts("user", {"type": "text", "text": "Where is 7?"})},
            parts(
                "assistant",
                {"type": "step-start"},
                {"type": "tool-look_up", "toolCallId": "t", "state": "output-available", "input": VALUES}
                | {"output": STATE},
                {"type": "text", "text": "On its way.", "state": "done"},
            ),
        ],
    ),
    "invocations of the AI SDK": (
        "AI SDK messages",
        [ASK, {**ANSWER, "toolInvocations": [{**SDK, "state": "result", "args": VALUES, "result": STATE}]}],
    ),
    "messages of the AI SDK": (
        "AI SDK messages",
        [
            ASK,
            blocks("assistant", {"type": "tool-call", **SDK, "input": VALUES}),
            blocks("tool", {"type": "tool-result", **SDK, "output": {"type": "json", "value": STATE}}),
            ANSWER,
        ],
    ),
    "parts of OpenTelemetry": (
        "messages with parts",
        [
            parts("user", {"type": "text", "content": "Where is 7?"}),
            parts("assistant", {"type": "tool_call", "id": "t", "name": "look_up", "arguments": VALUES}),
            parts("tool", {"type": "tool_call_response", "id": "t", "response": STATE}),
            parts("assistant", {"type": "text", "content": "On its way."}) | {"finish_reason": "stop"},
        ],
    ),
    "pydantic ai": (
        "Pydantic AI messages",
        [
            pydantic("request", "user-prompt", content="Where is 7?"),
            pydantic("response", "tool-call", tool_name="look_up", args=VALUES, tool_call_id="t"),
            pydantic("request", "tool-return", tool_name="look_up", content=STATE, tool_call_id="t"),
            pydantic("response", "text", content="On its way."),
        ],
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_every_vendor_s_conversation_becomes_the_same_messages(tmp_path: Path, name: str) -> None:
    form, items = CONVERSATIONS[name]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (items, items)))
    reading = read_file(tmp_path / "rows.jsonl")
    assert reading.summary == f"reads as: {form}, 2 rows in 1 group by opening messages"
    assert messages(json.dumps(items), "f:1") == messages(items, "f:1")
    for trajectory in reading.groups[0]:
        asked, called, result, answer = [each for each in trajectory.messages() if each != SYSTEM]
        assert asked["content"] in ("Where is 7?", [{"type": "text", "text": "Where is 7?"}])
        (made,) = called["tool_calls"]
        assert (called["role"], called["content"] or None, made) == ("assistant", None, call(made["id"]))
        assert "function_call" not in called
        assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", made["id"], RESULT)
        assert (answer["role"], answer["content"]) == ("assistant", "On its way.")


SCHEMA = {"type": "object", "properties": {"order": {"type": "integer"}}}
FLAT = {"name": "look_up", "description": "Looks."}


@pytest.mark.parametrize(
    "given",
    [
        [{"type": "function", "function": {**FLAT, "parameters": SCHEMA}}],
        [{**FLAT, "input_schema": SCHEMA}],
        [{"type": "function", **FLAT, "parameters": SCHEMA}],
        [{"functionDeclarations": [{**FLAT, "parameters": SCHEMA}]}],
        [{"toolSpec": {**FLAT, "inputSchema": {"json": SCHEMA}}}],
        {"look_up": {"description": "Looks.", "parameters": SCHEMA}},
        json.dumps([{**FLAT, "parameters": SCHEMA}]),
    ],
    ids=["openai", "anthropic", "responses", "gemini", "bedrock", "by name", "text"],
)
def test_every_vendor_s_tools_become_the_same(given: Any) -> None:
    assert tools(given) == [{"type": "function", "function": {**FLAT, "parameters": SCHEMA}}]


def test_text_and_parallel_calls_of_responses_are_one_turn() -> None:
    says = {"role": "assistant", "content": "I look."}
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in (1, 2)]
    outputs = [{"type": "function_call_output", "call_id": f"c{n}", "output": [{"n": n}]} for n in (1, 2)]
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    found, _ = messages([thought, says, *calls, *outputs], "f:1")
    assert [message["role"] for message in found] == ["assistant", "tool", "tool"]
    assert (found[0]["content"], found[0]["reasoning_content"]) == ("I look.", "Hm.")
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


AUDIO = {"type": "input_audio", "input_audio": {"data": "x"}}
PNG = {"type": "base64", "media_type": "image/png", "data": "x"}
NO_TEXT = {"type": "input_text", "text": ""}


def at(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        (blocks("user", AUDIO), AUDIO),
        (blocks("user", {"type": "image", "source": PNG}), at("data:image/png;base64,x")),
        (blocks("user", {"type": "input_image", "image_url": "https://x"}, NO_TEXT), at("https://x")),
        ({"type": "item_reference", "id": "i"}, {"type": "item_reference", "id": "i"}),
        (parts("user", {"fileData": {"fileUri": "gs://x"}}), {"fileData": {"fileUri": "gs://x"}}),
        (parts("user", {"type": "file", "url": "https://x"}), {"type": "file", "url": "https://x"}),
        (blocks("user", {"document": {"format": "pdf"}}), {"document": {"format": "pdf"}}),
    ],
)
def test_what_is_no_text_stays_in_the_content(message: dict[str, Any], kept: dict[str, Any]) -> None:
    ((said,), _) = messages([message], "f:1")
    assert said["content"][0] == kept


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([5], "0: it is no message"),
        ([ASK, {"content": "x"}], "1.role: field required"),
        ([ASK, {"type": "assistant", "content": [{"text": "x"}]}], "1.role: field required"),
        ([{"from": "narrator", "value": "x"}], "0.from: 'narrator' is no speaker"),
        ("hello", "messages: it is text"),
        ({"role": "user"}, "messages: it is no list"),
    ],
)
def test_what_is_no_message_is_named_with_its_place(items: Any, problem: str) -> None:
    with pytest.raises(RowError, match=f"f:1 cannot be judged: {problem}"):
        messages(items, "f:1")


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


@pytest.mark.parametrize(
    "row",
    [
        {"systemInstruction": {"parts": [{"text": "You run a desk."}]}, "contents": GEMINI},
        {"system_instruction": "You run a desk.", "contents": GEMINI},
        {"system": [{"text": "You run a desk."}], "messages": BEDROCK},
        {"system_prompt": "You run a desk.", "messages": [ASK, ANSWER]},
        {"messages": [{"kind": "request", "parts": [{"part_kind": "system-prompt", "content": "You run a desk."}]}]},
    ],
)
def test_the_system_s_instruction_stands_first(tmp_path: Path, row: dict[str, Any]) -> None:
    (tmp_path / "row.json").write_text(json.dumps(row))
    (group,) = read_file(tmp_path / "row.json").groups
    assert group.trajectories[0].messages()[0] == SYSTEM
    assert group.trajectories[0].metadata == {}


YES = {"type": "text", "text": "Yes."}


@pytest.mark.parametrize(
    "items",
    [
        [blocks("assistant", {"type": "thinking", "thinking": "Hm.", "signature": "s"}, YES)],
        [
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "message", **blocks("assistant", {"type": "output_text", "text": "Yes."})},
        ],
        [parts("model", {"text": "Hm.", "thought": True}, {"text": "Yes."})],
        [blocks("assistant", {"reasoningContent": {"reasoningText": {"text": "Hm."}}}, {"text": "Yes."})],
        [parts("assistant", {"type": "reasoning", "text": "Hm."}, YES)],
        [{"role": "assistant", "content": "Yes.", "thinking": "Hm."}],
        [{"role": "assistant", "content": "Yes.", "reasoning": "Hm."}],
    ],
    ids=["anthropic", "responses", "gemini", "bedrock", "parts", "ollama", "openrouter"],
)
def test_thoughts_stand_apart(items: list[Any]) -> None:
    ((said,), _) = messages(items, "f:1")
    assert said == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}


WORDS = sorted(set(re.findall(r'"(\w+)"', json.dumps(list(CONVERSATIONS.values())))))
JSON = st.recursive(
    st.sampled_from(WORDS) | st.none() | st.booleans() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(st.sampled_from(WORDS), JSON, min_size=1, max_size=5), max_size=3))
@example([{"role": "user", "content": [None, "toolCallId", 5, ["a"]]}])
def test_a_message_of_any_shape_is_read_or_stays_as_it_is(items: list[dict[str, Any]]) -> None:
    assert all(isinstance(message, dict) for message in as_chat(items))
