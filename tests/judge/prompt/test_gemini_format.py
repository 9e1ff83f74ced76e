import base64

import pytest

from gavel.judge.prompt.canonical_group import canonicalize
from gavel.judge.prompt.flags import with_flags
from gavel.judge.prompt.provider_formats import Image, TextEvent, ToolCallEvent, View, read_messages, unseen_content
from gavel.scenarios.trajectory import Trajectory

PIXEL = base64.b64encode(b"not really an image").decode()

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
    {"role": "model", "parts": [{"text": "Done."}]},
]
SNAKE = [
    {"role": "user", "parts": "Refund 7890."},
    {
        "role": "model",
        "parts": [
            {"text": "I look.", "thought": None, "function_call": None, "inline_data": None},
            {"text": None, "function_call": {"id": "a", "name": "get_order", "args": {"id": "7890", "n": 1}}},
            {"function_call": {"id": "b", "name": "get_policy", "args": {}, "will_continue": None}},
        ],
    },
    {
        "role": "function",
        "parts": [{"function_response": {"id": "b", "name": "get_policy", "response": {"window": 30}}}],
    },
    {"role": "tool", "parts": [{"function_response": {"id": "a", "name": "get_order", "response": {"days": 10}}}]},
    {"role": "model", "parts": {"text": "Done."}},
]
OPENAI = [
    {"role": "user", "content": "Refund 7890."},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "a", "function": {"name": "get_order", "arguments": '{"id": "7890", "n": 1}'}},
            {"id": "b", "function": {"name": "get_policy", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": '{"days": 10}'},
    {"role": "tool", "tool_call_id": "b", "content": '{"window": 30}'},
    {"role": "model", "content": "Done."},
]


def flags_of(*conversations: list[dict]) -> list[tuple[str, ...]]:
    trajectories = {n: Trajectory(messages_and_choices=[*messages]) for n, messages in enumerate(conversations)}
    group = with_flags(canonicalize(trajectories))
    flags = {index: member.flags for member in group.members for index in member.indices}
    return [flags[index] for index in range(len(conversations))]


def events(*parts: object, role: str = "model", view: View | None = None):
    return read_messages([{"role": role, "parts": list(parts)}], view or View())


@pytest.mark.parametrize("form", [CAMEL, SNAKE], ids=["camel case", "snake case"])
def test_an_attempt_is_the_same_member_as_in_openai_s_form(form):
    group = canonicalize({0: Trajectory(messages_and_choices=OPENAI), 1: Trajectory(messages_and_choices=form)})
    assert len(group.members) == 1
    assert group.shared == (
        TextEvent("user", "Refund 7890."),
        TextEvent("assistant", "I look."),
        ToolCallEvent("get_order", '{"id":"7890","n":1}', '{"days":10}'),
        ToolCallEvent("get_policy", "{}", '{"window":30}', same_turn=True),
        TextEvent("assistant", "Done."),
    )


@pytest.mark.parametrize("form", [CAMEL, SNAKE, CAMEL[:2], SNAKE[3:], OPENAI[-1:]])
def test_an_agent_that_speaks_or_acts_has_no_flag(form):
    assert flags_of(form) == [()]


@pytest.mark.parametrize("parts", [[], [{"text": ""}], [{"text": "hm", "thought": True}], [{"text": " \n"}], ""])
def test_an_agent_without_words_and_calls_is_empty(parts):
    assert flags_of([CAMEL[0], {"role": "model", "parts": parts}], CAMEL) == [("empty",), ()]


@pytest.mark.parametrize(
    "message",
    [
        {"parts": [{"text": "Done."}]},
        {"role": "critic", "content": "Done."},
        {"role": "ai", "parts": [{"text": "Done."}]},
        {"type": "agent", "value": "Done."},
        {"from": "gpt", "value": "Done."},
        {"speaker": "agent", "said": "Done."},
        {"role": "agent", "turns": [{"said": "Done."}]},
    ],
    ids=str,
)
def test_a_message_of_an_unknown_form_is_not_empty(message):
    [flags] = flags_of([CAMEL[0], message])
    assert "empty" not in flags


@pytest.mark.parametrize(
    "part",
    [
        {"inlineData": {"mimeType": "image/png", "data": PIXEL}},
        {"inline_data": {"mime_type": "image/png", "data": PIXEL}},
        {"inline_data": {"mime_type": "audio/wav", "data": PIXEL}},
        {"inlineData": {"data": PIXEL}},
        {"fileData": {"mimeType": "video/mp4", "fileUri": "gs://bucket/a.mp4"}},
        {"file_data": {"mime_type": "image/png", "file_uri": "https://example.com/a.png"}},
        {"fileData": "gs://bucket"},
        {"text": 5},
        {"functionCall": "f()"},
        {"tomorrow": {"payload": "p"}},
        {"text": "a", "functionCall": {"name": "f"}},
        {},
    ],
    ids=str,
)
@pytest.mark.parametrize("role", ["user", "model"])
def test_a_part_that_is_neither_text_nor_a_call_is_unseen_content(role, part):
    found = events({"text": "look:"}, part, role=role)
    assert len(unseen_content(found)) == 1
    assert flags_of([{"role": role, "parts": [part]}])[0][-1:] == ("unseen content",)


def test_an_image_in_a_part_is_sent_to_those_who_see_images():
    [said] = events({"inlineData": {"mimeType": "image/png", "data": PIXEL}}, view=View("embedded"))
    [image] = said.attachments
    assert isinstance(image, Image)
    assert image.url == f"data:image/png;base64,{PIXEL}"


def test_an_image_in_a_response_stands_with_its_call():
    image = {"inlineData": {"mimeType": "image/png", "data": PIXEL}}
    response = {"name": "look", "response": {"seen": 1}, "parts": [image]}
    [call] = read_messages(
        [
            {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": response}]},
        ],
        View(),
    )
    assert isinstance(call, ToolCallEvent)
    assert call.result is not None
    assert call.result.startswith('{"seen":1}\n[')
    assert len(call.attachments) == 1


def test_code_that_the_server_ran_is_a_call_with_its_result():
    found = events(
        {"executableCode": {"language": "PYTHON", "code": "print(1)"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
    )
    assert found == (
        ToolCallEvent(
            "executable_code",
            '{"code":"print(1)","language":"PYTHON"}',
            '{"outcome":"OUTCOME_OK","output":"1"}',
        ),
    )


def test_fields_beside_a_part_s_value_are_shown():
    [said, call] = events(
        {"text": "Hi", "extra": "x1"}, {"functionCall": {"name": "f", "args": {}, "more": "x2"}, "also": "x3"}
    )
    assert isinstance(said, TextEvent)
    assert all(text in said.text for text in ("Hi", "x1", "x2", "x3"))
    assert call == ToolCallEvent("f", "{}")
