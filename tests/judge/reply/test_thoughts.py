import re

import pytest

from gavel.judge.reply.lenient_json import Broken, Found, find_values
from gavel.judge.reply.thoughts import MARK, read_mark, without_tags
from tests.judge.reply.malformed import OPEN_THOUGHTS

ANSWER = '{"a": 1}'


def values(text):
    found = list(find_values(text))
    if any(isinstance(item, Broken) for item in found):
        return "cut off"
    values = []
    for item in found:
        assert isinstance(item, Found)
        if item.repairs["thoughts"] and item.start == 0:
            values = []
        elif item.value is not None:
            values.append(item.value)
    return values


@pytest.mark.parametrize(("opening", "closing"), OPEN_THOUGHTS, ids=[pair[0].strip() for pair in OPEN_THOUGHTS])
def test_thoughts_end_at_their_closing_tag_or_not_at_all(opening, closing):
    assert values(f'{opening}maybe {{"a": 0}}{closing}{ANSWER}') == [{"a": 1}]
    assert values(f"{opening}maybe {ANSWER}") == "cut off"


@pytest.mark.parametrize(
    "text",
    [
        f"<answer>{ANSWER}</answer>",
        f"<tool_call>{ANSWER}</tool_call>",
        f"<b>Scores</b><br/>{ANSWER}",
        f"<|START_RESPONSE|>{ANSWER}<|END_RESPONSE|>",
        f"<|channel|>final<|message|>{ANSWER}<|return|>",
        f"<|im_start|>assistant\n{ANSWER}<|im_end|>",
        f"The `<think>` tag is not used. {ANSWER}",
        f"It leaves <order_id> empty in its call: {ANSWER}",
        f"I read [all] of it. {ANSWER}",
        f"analysisI compare {{}}. assistantfinal{ANSWER}",
        f"<think>a <think>nested</think> {{}} thought</think>{ANSWER}",
        f"so {{}}</think>{ANSWER}",
        f"so {{}}</ponder>{ANSWER}",
    ],
)
def test_other_tags_hide_nothing(text):
    assert [value for value in values(text) if value] == [{"a": 1}]


@pytest.mark.parametrize(
    "text",
    [
        f"<think>a <think>nested</think> {ANSWER}",
        f'<think>it wrote "</think>" and {ANSWER}',
        f"analysisI compare them: {ANSWER}",
        f"<|channel|>analysis<|message|>{ANSWER}",
        f"<|channel|>commentary to=functions.x<|message|>{ANSWER}",
    ],
)
def test_thoughts_that_only_seem_to_end_are_cut_off(text):
    assert values(text) == "cut off"


def test_a_label_in_brackets_is_text():
    found = re.search(MARK, "[KQXB]", re.IGNORECASE)
    assert found
    assert read_mark(found, {"kqxb"}).kind == "text"
    assert read_mark(found, ()).kind == "opens"


def test_tags_that_format_are_left_out_of_a_text():
    assert without_tags("<b>best</b><|im_end|></s> <foo>") == "best <foo>"
