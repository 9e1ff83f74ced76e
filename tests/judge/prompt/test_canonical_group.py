import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.prompt.canonical_group import TextEvent, ToolCallEvent, canonicalize
from gavel.llm.types import Message
from gavel.scenarios.trajectory import Trajectory
from tests.judge.groups import OPENING, TOOLS, choice, desk


def canonical(*trajectories: Trajectory):
    return canonicalize(dict(enumerate(trajectories)))


def test_members_that_differ_only_in_ids_and_log_probs_are_one():
    first = desk("get_order", "refund", call_id="a")
    second = desk("get_order", "refund", call_id="b")
    second.messages_and_choices[-1] = choice("Done.", token_ids=[1, 2], policy_version=3)
    group = canonical(first, second, desk("refund"))
    assert sorted(member.indices for member in group.members) == [(0, 1), (2,)]


def test_arguments_are_compared_by_value():
    def with_arguments(arguments: str) -> Trajectory:
        return Trajectory(messages_and_choices=[*OPENING, choice(calls=[("f", arguments)])])

    same = canonical(with_arguments('{"a": 1, "b": "é"}'), with_arguments('{"b":"\\u00e9","a":1}'))
    assert len(same.members) == 1
    assert len(canonical(with_arguments('{"a": 1}'), with_arguments('{"a": 2}')).members) == 2
    assert len(canonical(with_arguments('{"a": 1'), with_arguments('{"a": 1}')).members) == 2


def said(content: object, **fields: object) -> Trajectory:
    return Trajectory(messages_and_choices=[*OPENING, {"role": "assistant", "content": content, **fields}])


@pytest.mark.parametrize(
    "content",
    [
        "<think>\nhmm\n</think>\n\nDone.",
        "<seed:think>hmm</seed:think>Done.",
        "<antThinking>hmm</antThinking>Done.",
        "<|START_THINKING|>hmm<|END_THINKING|>Done.",
        "[THINK]hmm[/THINK]Done.",
        "< think >hmm</ think >Done.",
        '<details type="reasoning" done="true" duration="5">\n<summary>hmm</summary>\n> hmm\n</details>\nDone.',
        "Done. <think>hmm</think>",
        "Done.\n\n<think>hmm",
        "<think>hmm <think>hmm</think> hmm</think>Done.",
        [{"type": "text", "text": "<think>hmm</think>Done."}, {"type": "text", "text": "<think>hmm"}],
        [{"type": "text", "text": "<think>hmm"}, {"type": "text", "text": "hmm</think>Done."}],
    ],
)
def test_thoughts_are_neither_shown_nor_compared_wherever_they_stand(content):
    thought = said("Done.")
    thought.messages_and_choices.insert(-1, {"role": "thought", "content": "hmm"})
    group = canonical(said(content), said("Done.", reasoning_content="hmm"), thought, said("Done."))
    assert len(group.members) == 1
    assert "hmm" not in repr(group)
    assert "Done." in repr(group)


CUT_OFF = ["<think>hmm", "<think>hmm `</think>` hm", "<|channel|>analysis<|message|>hmm", "analysisIt says hmm"]


@pytest.mark.parametrize("content", ["hmm</think>\n", *CUT_OFF])
def test_thoughts_alone_are_no_answer_but_keep_their_calls(content):
    assert len(canonical(said(content), said("", reasoning_content="hmm"), said(None)).members) == 1
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert canonical(said(content, tool_calls=calls)).shared[-1] == ToolCallEvent("f", "{}")


_CHATML = "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("role", "prompt", "shown"),
    [
        ("user", _CHATML + "<think>\n", ""),
        ("assistant", "<think>\n", ""),
        ("user", _CHATML, "5 or 4"),
        ("user", "What opens a thought?\n<think>", "5 or 4"),
    ],
)
def test_thoughts_that_a_rendered_prompt_or_a_prefill_opens_are_no_answer(role, prompt, shown):
    for text, answer in (("5 or 4", shown), ("5 or</think>4", "4")):
        messages = [{"role": role, "content": prompt}, {"role": "assistant", "content": text}]
        assert canonical(Trajectory(messages_and_choices=messages)).shared[-1] == TextEvent("assistant", answer)


@pytest.mark.parametrize(
    "content",
    [
        "It ends with `</think>`.",
        "See: `<think>hmm</think>` is how it thinks.",
        'It said "<think>hmm</think>", so I asked again.',
        "1. ```text\n<think>hmm</think>\n```",
        "I think so.",
        "<details><summary>More</summary>It is 4.</details>",
        "analysis of the data shows that it is 4.",
        "<answer>4</answer>",
    ],
)
def test_an_answer_about_thoughts_is_shown_whole(content):
    [event] = canonical(said(content)).shared[-1:]
    assert event == TextEvent("assistant", content)
    asked: Message = {"role": "user", "content": "<think>hmm</think>Hi"}  # only the agent thinks
    assert "hmm" in repr(canonical(Trajectory(messages_and_choices=[asked])))


LINE_ENDS = ["\n", "\r\n", "\r", "\r\r\n", "\x85", "\u2028", "\u2029", " \n", "\t\r\n", "\u200b\n"]
BLANKS = [" ", "\u00a0", "\u2009", "\u202f", "\u3000", "\u00ad ", " \u2060"]
UNSEEN_AT_ENDS = ["", "\n", "\r\n\r\n", " ", "\u00a0", "\u200b", "\ufeff", "\u2028", "\t"]


def like(data: st.DataObject, text: str) -> str:
    """A text that looks like the one given."""
    text = data.draw(st.sampled_from(["NFC", "NFD"]).map(lambda form: unicodedata.normalize(form, text)))
    pieces, line_end = [], data.draw(st.sampled_from(LINE_ENDS))
    for character in text:
        drawn = {"\n": [line_end], " ": BLANKS}.get(character, [character, character, f"{character}\u200b"])
        pieces.append(data.draw(st.sampled_from(drawn)))
    return "".join(pieces) + data.draw(st.sampled_from(UNSEEN_AT_ENDS))


@pytest.mark.parametrize("where", ["answer", "result", "JSON result", "arguments"])
@given(st.lists(st.sampled_from(["Café", " ", "\n", "\n\n", "क्षि", "می‌خواهم", "👨‍👩‍👧", "{", '"', "한"])), st.data())
def test_what_looks_alike_is_one(where, pieces, data):
    text = "x" + "".join(pieces)

    def attempt(text: str) -> Trajectory:
        arguments = json.dumps({"text": text}) if where == "arguments" else "{}"
        result = {"result": text, "JSON result": json.dumps([text, 1.10])}.get(where, "")
        answer: Message = {"role": "tool", "tool_call_id": "c0", "content": result}
        ending = choice(text if where == "answer" else "")
        return Trajectory(messages_and_choices=[*OPENING, choice(calls=[("f", arguments)]), answer, ending])

    one, other = attempt(text), attempt(like(data, text))
    group = canonical(one, other)
    assert len(group.members) == 1
    assert group == canonical(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a\nb", "a\n\nb"),
        ("  a", "a"),
        ("a\tb", "a b"),
        ("می‌خواهم", "میخواهم"),
        ('{"é": 1, "é": 2}', '{"é": 2}'),
        ('{"é": 3.14159265358979323846}', '{"é": 3.141592653589793}'),
        ('["a\\n"]', '["a\\\\n"]'),
    ],
)
def test_what_looks_different_is_two(one, other):
    assert len(canonical(said(one), said(other)).members) == 2


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"$ref": "#/$defs/Size"}, "small|large"),
        ({"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}]}, "small|large|null"),
        ({"type": ["integer", "null"]}, "integer|null"),
        ({"$ref": "#/$defs/Self"}, "any"),
        ({}, "any"),
    ],
)
def test_the_type_of_a_parameter_is_shown_as_its_schema_gives_it(schema, shown):
    definitions = {"Size": {"enum": ["small", "large"]}, "Self": {"$ref": "#/$defs/Self"}}
    parameters = {"properties": {"of": schema}, "required": ["of"], "$defs": definitions}
    attempt = desk("refund")
    attempt.tools = [{"type": "function", "function": {"name": "order", "parameters": parameters}}]
    assert canonical(attempt).tools == (f"order(of: {shown})",)


def test_tools_are_shown_once_in_one_line_and_members_with_others_say_which_they_have():
    line = "get_order(id: string): Look up an order."
    group = canonical(desk("refund"), desk("deny"))
    assert (len(group.tools), group.tools[0]) == (len(TOOLS), line)
    assert all(conversation.tools is None for member in group.members for conversation in member.conversations)
    other = desk("refund")
    other.tools = TOOLS[:1]
    group = canonical(desk("refund"), other)
    assert len(group.tools) == len(TOOLS)
    assert sorted(member.conversations[0].tools or () for member in group.members) == [(), (line,)]


def test_the_order_of_arrival_leaves_no_trace():
    one, two, three = desk("refund"), desk("deny"), desk("exchange")
    forward, backward = canonical(one, two, three), canonical(three, two, one)
    assert [member.conversations for member in forward.members] == [m.conversations for m in backward.members]
    assert forward.digest == backward.digest
