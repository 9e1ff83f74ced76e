import copy
import json
import operator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.judge.prompt.canonical_group import CanonicalGroup, canonicalize
from gavel.judge.prompt.fenced_transcript import draw_markers, render_transcripts
from gavel.judge.prompt.flags import UNSEEN, with_flags
from gavel.judge.prompt.provider_formats import Image, TextEvent, ToolCallEvent, Unseen, View, read_messages
from gavel.scenarios.trajectory import Trajectory

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
DATA_URL = f"data:image/png;base64,{PIXEL}"


def events(*messages: dict, view: View | None = None):
    return read_messages(messages, view or View())


def shown(*messages: dict) -> tuple[str, CanonicalGroup]:
    """The transcript of one attempt, and its group with flags."""
    group = with_flags(canonicalize({0: Trajectory(messages_and_choices=[copy.deepcopy(m) for m in messages])}))
    return render_transcripts(group, [0], draw_markers(group, Random(0))), group


OPENAI = [
    {"role": "user", "content": "Refund 7890."},
    {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "get_order", "arguments": '{"id": "7890", "n": 1}'}},
            {"id": "b", "type": "function", "function": {"name": "get_policy", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "b", "content": '{"window": 30}'},
    {"role": "tool", "tool_call_id": "a", "content": '{"days": 10}', "name": "get_order"},
]
ANTHROPIC = [
    {"role": "user", "content": [{"type": "text", "text": "Refund 7890."}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "xyz"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "a", "name": "get_order", "input": {"n": 1, "id": "7890"}},
            {"type": "tool_use", "id": "b", "name": "get_policy", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": '{"days":10}'}]},
            {"type": "tool_result", "tool_use_id": "b", "content": '{"window": 30}', "is_error": False},
        ],
    },
]
LOOKS = {"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}
RESPONSES = [
    {"type": "message", "role": "user", "content": "Refund 7890."},
    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"},
    {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [LOOKS]},
    {"type": "function_call", "id": "f", "call_id": "a", "name": "get_order", "arguments": '{"id":"7890","n":1}'},
    {"type": "function_call", "call_id": "b", "name": "get_policy", "arguments": "{}", "status": "completed"},
    {"type": "function_call_output", "call_id": "a", "output": '{"days": 10}'},
    {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": '{"window": 30}'}]},
]


CAMEL = [
    {"role": "user", "parts": [{"text": "Refund 7890."}]},
    {
        "role": "model",
        "parts": [
            {"text": "hm", "thought": True},
            {"text": "I look.", "thoughtSignature": "xyz"},
            {"functionCall": {"name": "get_order", "args": {"n": 1, "id": "7890"}}, "thoughtSignature": "xyz"},
            {"functionCall": {"name": "get_policy", "args": {}}},
        ],
    },
    {
        "role": "user",
        "parts": [
            {"functionResponse": {"name": "get_policy", "response": {"window": 30}}},
            {"functionResponse": {"name": "get_order", "response": {"days": 10}}},
        ],
    },
]
FORMS = [ANTHROPIC, RESPONSES, CAMEL]


@pytest.mark.parametrize("other", FORMS, ids=["anthropic", "responses", "gemini"])
def test_one_attempt_in_the_form_of_two_vendors_is_one_member(other):
    group = canonicalize({0: Trajectory(messages_and_choices=OPENAI), 1: Trajectory(messages_and_choices=other)})
    assert len(group.members) == 1
    assert group.shared == (
        TextEvent("user", "Refund 7890."),
        TextEvent("assistant", "I look."),
        ToolCallEvent("get_order", '{"id":"7890","n":1}', '{"days":10}'),
        ToolCallEvent("get_policy", "{}", '{"window":30}', same_turn=True),
    )


TEXT_SOURCE = {"type": "text", "data": "T"}
UNSEEN_PARTS = [
    {"type": "image_url", "image_url": {"url": DATA_URL}},
    {"type": "image_url", "image_url": {"url": "data:abc"}},
    {"type": "input_image", "file_id": "file-1"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "file", "file": {"filename": "a.pdf", "file_data": "AAAA"}},
    {"type": "a block from tomorrow", "payload": "p"},
    *({"type": 7}, {"no": "type"}, {}, 5, None, ["nested"]),
]


@pytest.mark.parametrize(
    ("message", "texts"),
    [
        ({"role": "assistant", "content": "Hm.", "refusal": "I will not."}, ["Hm.", "I will not."]),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, ["No."]),
        ({"role": "user", "name": "Alice", "content": "Hi"}, ["Alice", "Hi"]),
        ({"role": "critic", "content": "Bad."}, ["critic", "Bad."]),
        ({"role": "tool", "tool_call_id": "?", "content": "x", "exit_code": 3}, ["x", "[exit_code: 3]"]),
        ({"role": "assistant", "content": "x", "annotations": [{"url": "u"}]}, ["x", '"url":"u"']),
        ({"role": "assistant", "content": "x", "provider_specific_fields": {"citations": ["c1"]}}, ["c1"]),
        ({"role": "user", "content": {"a": "dict"}}, ['{"a":"dict"}']),
        ({"role": "user", "content": 0}, ["0"]),
        ({"role": "user", "content": [{"type": "document", "source": TEXT_SOURCE, "title": "t"}]}, ["T", "t"]),
        ({"role": "user", "content": [{"type": "search_result", "content": [{"type": "text", "text": "s1"}]}]}, ["s1"]),
        ({"role": "tool", "content": '{"a": 1, "a": 2}'}, ['{"a": 1, "a": 2}']),
        ({"role": "tool", "content": '{"pi": 3.14159265358979323846}'}, ["3.14159265358979323846"]),
        ({"type": "web_search_call", "id": "w", "action": {"query": "lamps"}}, ["web_search", "lamps"]),
    ],
    ids=str,
)
def test_all_that_is_text_is_shown(message, texts):
    transcript, group = shown(message)
    assert all(text in transcript for text in texts), transcript
    assert group.members[0].flags == () or UNSEEN not in group.members[0].flags


@pytest.mark.parametrize("field", ["thought", "thoughts", "thinking", "reasoning_text", "thinking_blocks"])
def test_a_field_named_as_thoughts_is_not_shown(field: str) -> None:
    transcript, _ = shown({"role": "assistant", "content": "Done.", field: "PLAN", "thoughtful_action": "look"})
    assert ("PLAN" in transcript, "thoughtful_action" in transcript) == (False, True)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": DATA_URL, "detail": "low"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        {"type": "image", "data": PIXEL, "mimeType": "image/png"},
        {"inlineData": {"mimeType": "image/png", "data": PIXEL}},
    ],
    ids=lambda part: part.get("type", "gemini"),
)
def test_an_image_of_any_vendor_is_the_same_image(part):
    key, text = ("parts", {"text": "a"}) if "inlineData" in part else ("content", {"type": "text", "text": "a"})
    [said] = events({"role": "user", key: [text, part]}, view=View("embedded"))
    [image] = said.attachments
    assert isinstance(image, Image)
    assert image.url == DATA_URL
    assert isinstance(said, TextEvent)
    assert said.text == f"a\n[{image.tag}]"


def test_an_image_at_an_address_is_sent_only_to_those_who_fetch_it():
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}
    assert isinstance(events(message, view=View("any"))[0].attachments[0], Image)
    assert isinstance(events(message, view=View("embedded"))[0].attachments[0], Unseen)
    signed = View("any", redact=lambda text: text.replace("a.png", "?"))
    assert isinstance(events(message, view=signed)[0].attachments[0], Unseen)


SKIPPED = frozenset({"type", "role", "id", "tool_call_id", "tool_use_id", "call_id", "signature", "cache_control"})
REASONING = frozenset({"thinking", "redacted_thinking", "reasoning", "summary_text"})


class Marked:
    """Puts a marker of its own into every text of a message, except ids, types and reasoning."""

    def __init__(self) -> None:
        self.markers: list[str] = []

    def mark(self, value, key: str = ""):
        if isinstance(value, dict):
            if value.get("type") in REASONING:
                return value
            return {name: self.mark(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [self.mark(item, key) for item in value]
        if not isinstance(value, str) or key in SKIPPED:
            return value
        self.markers.append(f"mark{len(self.markers)}x")
        try:
            json.loads(value)
        except ValueError:
            return f"{value} {self.markers[-1]}"
        return json.dumps({"was": json.loads(value), "m": self.markers[-1]})


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["x", "", "{}", "[1]"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "text", "name"]), inner, max_size=2)
    ),
    max_leaves=4,
)
texts = st.sampled_from(["hello", "", '{"a":1}', "data:image/png;base64,AAAA"])


def fields(**values) -> st.SearchStrategy[dict]:
    return st.fixed_dictionaries(
        {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in values.items()}
    )


parts = st.one_of(
    st.sampled_from(UNSEEN_PARTS),
    fields(type="output_text", text=texts | junk, extra=junk),
    fields(type="tool_use", id="a", name=junk, input=junk, more="x"),
    fields(type="tool_result", tool_use_id="a", content=junk),
    fields(type="thinking", thinking="hm"),
    fields(type="document", source=junk, title="t"),
    fields(type=st.sampled_from(["new", "text", "refusal"]), payload=junk),
    junk,
)
calls = junk | fields(id="a", function=fields(name=texts, arguments=junk, more=junk), also="x")
contents = st.lists(parts, max_size=3) | texts | junk
roles = st.sampled_from(["system", "user", "assistant", "tool", "critic"])
more = st.sampled_from(["name", "refusal", "audio", "annotations", "new", "function_call"])
messages = st.one_of(
    st.builds(
        operator.or_,
        fields(role=roles, content=contents, tool_calls=st.lists(calls)),
        st.dictionaries(more, junk, max_size=2),
    ),
    fields(type="function_call", call_id="a", name="f", arguments=junk),
    fields(type="function_call_output", call_id="a", output=contents),
    fields(type=st.sampled_from(["new", "new_call", "message"]), value=junk),
)


@pytest.mark.slow
@settings(max_examples=500)
@given(st.lists(messages, min_size=1, max_size=4))
def test_nothing_of_a_message_vanishes_without_the_flag(conversation):
    marked = Marked()
    conversation = marked.mark(conversation)
    transcript, group = shown(*conversation)
    missing = [marker for marker in marked.markers if marker not in transcript]
    assert not missing or UNSEEN in group.members[0].flags, transcript


@pytest.mark.parametrize(
    "thoughts",
    ["a\n```\nprint('</think>')\n```\nsecret", "a `</think>` secret", "```\nprint('</think>')\n```\n```\nsecret"],
)
def test_a_closing_tag_in_code_does_not_end_thoughts(thoughts: str):
    message = {"role": "assistant", "content": f"<think>\n{thoughts}\n</think>\nx1\n```\ny\n```"}
    assert read_messages([message], View()) == (TextEvent("assistant", "x1\n```\ny\n```"),)
