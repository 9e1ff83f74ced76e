"""Calls between tags that are plain text to the tokenizer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from renderers import ToolCallParseStatus

from gavel.trainer.policy.template_renderer import HermesCalls


class Characters:
    """One token for each character."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(map(chr, ids))

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [*map(ord, text)]


def extracted(text: str) -> tuple[str, list[tuple[str | None, object, ToolCallParseStatus]]]:
    rest, calls = HermesCalls(Characters()).extract([*map(ord, text)])
    return "".join(map(chr, rest)), [(call.name, call.arguments, call.status) for call in calls]


values = st.recursive(st.none() | st.booleans() | st.integers() | st.text("ab\n"), st.lists, max_leaves=4)
arguments = st.dictionaries(st.text("xyz", min_size=1), values, max_size=3)


@given(st.text("ab c"), st.lists(st.tuples(st.text("fg", min_size=1), arguments), max_size=3))
def test_text_and_calls_are_what_was_written(before: str, calls: list[tuple[str, dict[str, object]]]) -> None:
    written = [json.dumps({"name": name, "arguments": given}) for name, given in calls]
    text = before + "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written)
    assert extracted(text) == (before, [(name, given, ToolCallParseStatus.OK) for name, given in calls])


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('<tool_call>{"name": "f"', ToolCallParseStatus.UNCLOSED_BLOCK),
        ("<tool_call>{name: f}</tool_call>", ToolCallParseStatus.INVALID_JSON),
        ('<tool_call>{"arguments": {}}</tool_call>', ToolCallParseStatus.MISSING_NAME),
        ('<tool_call>{"name": 3}</tool_call>', ToolCallParseStatus.MISSING_NAME),
        ("<tool_call>[]</tool_call>", ToolCallParseStatus.MISSING_NAME),
    ],
)
def test_a_broken_call_is_told_as_broken(text: str, status: ToolCallParseStatus) -> None:
    (call,) = extracted(text)[1]
    assert call[2] is status
