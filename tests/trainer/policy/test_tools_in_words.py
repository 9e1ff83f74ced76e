"""Tools in the words of a conversation's turns."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gavel.trainer.policy.template_renderer import CALLED, TOOLS, in_words

RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "c1", "content": "17"}


def test_calls_and_results_are_text_and_tools_stand_in_the_first_turn() -> None:
    system = {"role": "system", "content": "Be brief."}
    first, asked, called, answered = in_words([system, *CALLED, RESULT, {**RESULT, "content": None}], TOOLS)
    assert first["role"] == "system"
    assert first["content"].startswith("Be brief.\n\nYou can call these tools, each described by a JSON schema:\n{")
    assert json.loads(first["content"].splitlines()[3]) == TOOLS[0]["function"]
    assert asked == CALLED[0]
    assert called["content"] == '<tool_call>\n{"name": "look_up", "arguments": {"word": "seventeen"}}\n</tool_call>'
    assert "tool_calls" not in called
    assert in_words([*CALLED, RESULT], [])[0] == CALLED[0], "without tools nothing is told of them"
    results = "<tool_response>\n17\n</tool_response>\n<tool_response>\n\n</tool_response>"
    assert answered == {"role": "user", "content": results}


def test_calls_are_written_as_a_policy_writes_them() -> None:
    calls = [
        {"function": {"name": "f", "arguments": json.dumps({"x": "ö"})}},
        {"function": {"name": "g", "arguments": {"y": 1}}},
        {"function": {"name": "h", "arguments": "no json"}},
    ]
    (called,) = in_words([{"role": "assistant", "content": "Well. ", "tool_calls": calls}], [])
    assert called["content"] == (
        'Well. <tool_call>\n{"name": "f", "arguments": {"x": "ö"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"y": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "h", "arguments": no json}\n</tool_call>'
    )


def test_turns_alternate_where_they_did() -> None:
    later, thanks = {"role": "system", "content": "Now in French."}, {"role": "user", "content": "Thanks."}
    conversation = [*CALLED, RESULT, thanks, {"role": "assistant", "content": "Bye."}, later, thanks]
    found = in_words(conversation, TOOLS, system=False)
    assert [each["role"] for each in found] == ["user", "assistant"] * 2 + ["user"]
    assert found[2]["content"] == "<tool_response>\n17\n</tool_response>\n\nThanks."
    assert found[4]["content"] == "Now in French.\n\nThanks."


def test_without_system_turns_the_user_begins_with_them() -> None:
    system = {"role": "system", "content": "Be brief."}
    (asked,) = in_words([system, CALLED[0]], TOOLS, system=False)
    assert asked["content"].startswith("Be brief.\n\nYou can call")
    assert asked["content"].endswith("\n\nWhich number?")
    assert [each["role"] for each in in_words([], TOOLS, system=False)] == ["user"]


turns = st.lists(st.sampled_from(["user", "assistant", "tool", "call"]), max_size=6)


@given(turns, st.booleans(), st.booleans())
def test_no_turn_is_lost_and_none_has_calls(kinds: list[str], first: bool, system: bool) -> None:
    made: dict[str, dict[str, Any]] = {"tool": RESULT, "call": CALLED[-1]}
    said = [made.get(kind) or {"role": kind, "content": f"{n}."} for n, kind in enumerate(kinds)]
    given = [*([{"role": "system", "content": "Be brief."}] if first else []), *said]
    before = json.dumps(given)
    found = in_words(given, TOOLS, system=system)
    assert json.dumps(given) == before
    assert {each["role"] for each in found} <= {"system", "user", "assistant"}
    assert all(set(each) <= {"role", "content"} for each in found)
    text = "".join(each["content"] for each in found)
    assert all(f"{n}." in text for n, kind in enumerate(kinds) if kind not in made)
    assert text.count("<tool_response>\n17") == kinds.count("tool")
    assert text.count('"arguments": {"word"') == kinds.count("call")
    assert ("Be brief." in text) == first
