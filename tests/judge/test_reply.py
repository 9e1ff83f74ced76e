import json
import re
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.judge.panel.polling import name_attempts
from gavel.judge.reply.verdict import VerdictError, read_verdict, reply_schema
from tests.judge.replies import REFUSED, clean_reply, malformed_reply

LABELS = ("K7QX", "W3RT", "M4TD")
EXPECTED = {"K7QX": 0.9, "W3RT": 0.2, "M4TD": 0.5}


def entries(values=EXPECTED):
    return [{"trajectory_id": label, "explanation": "why", "score": score} for label, score in values.items()]


def values_of(reply: str, labels: Sequence[str] = LABELS) -> dict[str, float]:
    return {label: scored.score for label, scored in read_verdict(reply, labels).scores.items()}


PLAIN = json.dumps({"scores": entries()})
DRAFT = json.dumps({"scores": entries(dict.fromkeys(LABELS, 0.1))})

GOOD = {
    "plain": PLAIN,
    "after thinking about tags": f"<think>it wrote <think>, </think> and {DRAFT}</think>\n\n{PLAIN}",
    "after the thoughts of other models": f"<|START_THINKING|>{DRAFT}<|END_THINKING|>{PLAIN}",
    "in the wrappers of two vendors": json.dumps({"parameter": {"properties": {"scores": entries()}}}),
    "a map of objects": json.dumps({label: {"score": s, "explanation": "why"} for label, s in EXPECTED.items()}),
    "labels in small letters": PLAIN.lower(),
    "labels dressed up": PLAIN.replace('"K7QX"', '"trajectory_K7QX"').replace('"W3RT"', '"Trajectory [W3RT]"'),
    "percent": PLAIN.replace("0.9", '"90%"').replace("0.2", '"20 %"').replace("0.5", '"50%"'),
    "full-width digits": PLAIN.replace("0.9", '"０．９"').replace("0.2", '"２０％"'),
    "raw line breaks in a string": PLAIN.replace("why", "line one\nline two", 1),
    "fractions": PLAIN.replace("0.9", '"9/10"').replace("0.2", '"0.2/1.0"').replace("0.5", '"0.5/1"'),
    "bare decimal commas": PLAIN.replace("0.9", "0,9").replace("0.2", "0,2"),
    "numbers as strings": PLAIN.replace("0.9", '".9"').replace("0.2", '"0.20"').replace("0.5", '"5e-1"'),
    "encoded three times": json.dumps(json.dumps(PLAIN)),
    "without the last brace": json.dumps({"scores": entries()})[:-1],
    "without a closing bracket within": PLAIN.replace("]}", "}"),
    "an explanation that says otherwise": PLAIN.replace("why", "It is worth 0.1, on a scale of ten 7.", 1),
    "a comment of one word": PLAIN.replace("0.9}", "0.9} // best"),
}

BAD = {
    "one closing brace too many": PLAIN + "}",
    "a conflict": json.dumps({"scores": [*entries(), entries({"K7QX": 0.1})[0]]}),
    "a key given twice": '{"K7QX": 0.9, "K7QX": 0.1, "W3RT": 0.2, "M4TD": 0.5}',
    "a key given twice in other letters": PLAIN.replace('"score": 0.9', '"score": 0.9, "Score": 0.1'),
    "a string on a scale of ten": PLAIN.replace("0.9", '"9"'),
    "a number and a remark": PLAIN.replace("0.9", '"0.9 (good)"'),
    "a leading nought": PLAIN.replace("0.9", "09"),
    "an object for a score": PLAIN.replace("0.9", '{"value": 0.9, "max": 5}'),
    "two ids in an entry": PLAIN.replace('"explanation"', '"id": "W3RT", "explanation"', 1),
    "an id given twice": PLAIN.replace('"explanation"', '"trajectory_id": "W3RT", "explanation"', 1),
    "other labels": PLAIN.replace("K7QX", "ZZZZ"),
    "numbers that are no scores": json.dumps({"penalties": EXPECTED}),
    "only thoughts": f"<think>{PLAIN}</think>",
    "only thoughts without a beginning": f"I think {PLAIN}</think> That is it.",
    "thoughts that never end": f"<think>hmm {PLAIN}",
    "a fence of something else": f"```thinking\n{PLAIN}\n```",
    "plain lines": "\n".join(f"Trajectory {label}: {score}" for label, score in EXPECTED.items()),
    "a quote that is missing": json.dumps([*entries(), *entries({"W3RT": 0.2})]).replace(
        'why", "score": 0.9', 'why, "score": 0.9'
    ),
    "below zero": PLAIN.replace("0.9", "-0.1"),
    "a truth value": PLAIN.replace("0.9", "true"),
    "an id that names two": PLAIN.replace('"K7QX"', '"K7QX and W3RT"'),
    "null for all": json.dumps(dict.fromkeys(LABELS)),
    "braces without end": '{"a":' * 2000,
    "brackets around brackets": "[" * 500 + json.dumps(EXPECTED) + "]" * 500,
}


@pytest.mark.parametrize("case", GOOD)
def test_a_reply_that_can_be_meant_in_one_way_is_read(case):
    assert values_of(GOOD[case]) == EXPECTED


@pytest.mark.parametrize("reply", (BAD | REFUSED).values(), ids=BAD | REFUSED)
def test_a_reply_that_cannot_be_used_or_whose_numbers_are_taken_back_is_refused(reply):
    with pytest.raises(VerdictError):
        read_verdict(reply, LABELS)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-2, 12) | st.sampled_from([*LABELS, "90%", "0,5", "x"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*LABELS, "scores", "score", "trajectory_id", "id", "x"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=40)
@given(st.text(max_size=20), json_values, st.text(max_size=20))
def test_any_reply_gives_all_labels_a_score_in_range_or_is_refused(before, value, after):
    try:
        read = values_of(before + json.dumps(value) + after)
    except VerdictError:
        return
    assert list(read) == list(LABELS)
    assert all(isinstance(score, float) and 0 <= score <= 1 for score in read.values())


NOISE = [*"\"'”{}[]:,;\\/#* \nabXQ<>`-_=.", *LABELS, '"score":', "},{", "null", "//", "/*", "*/", "```", "</think>"]


@pytest.mark.parametrize("seed", range(300))
def test_a_value_that_stands_alone_is_read_in_any_form(seed):
    reply, labels, scores = clean_reply(Random(seed))
    assert values_of(reply, labels) == scores


@pytest.mark.slow
@given(st.integers(0, 100_000), st.data())
@settings(max_examples=400)
def test_a_mutated_reply_is_refused_or_read_right(seed, data):
    """Characters are lost, come in or are replaced anywhere but in a number, and the reply may break off."""
    reply, labels, scores = clean_reply(Random(seed))
    for _ in range(data.draw(st.integers(1, 2))):
        numbers = [range(number.start(), number.end()) for number in re.finditer(r"\d*\.\d+", reply)]
        place = data.draw(st.integers(0, len(reply)))
        end = min(len(reply), place + data.draw(st.integers(0, 3)))
        if not any(place < number.stop and number.start < max(end, place + 1) for number in numbers):
            reply = reply[:place] + data.draw(st.sampled_from(["", *NOISE])) + reply[end:]
    if data.draw(st.booleans()):
        reply = reply[: data.draw(st.integers(0, len(reply)))]
    with suppress(VerdictError):
        read = values_of(reply, labels)
        assert read == {label: scores[label] for label in read}


def test_every_repair_is_counted_by_kind():
    reply = "<think>hm</think>\n```\n" + repr({"result": EXPECTED | {"K7QX": "90%"}}) + "\n```"
    repairs = read_verdict(reply, LABELS).repairs
    assert repairs == {"thoughts": 1, "fence": 1, "quotes": 5, "wrapper": 1, "form": 1, "number": 1}
    assert not read_verdict(PLAIN, LABELS).repairs


@pytest.mark.slow
def test_no_number_comes_of_a_reply_that_does_not_mean_it():
    for seed in range(4_000):
        reply, labels, means = malformed_reply(Random(seed))
        with suppress(VerdictError):
            assert values_of(reply, labels) == means, reply


def test_a_reply_that_was_cut_off_lacks_no_bracket():
    assert read_verdict(f"<think>maybe {DRAFT}</think>\n```json\n{PLAIN}\n```", LABELS, cut_off=True).scores
    with pytest.raises(VerdictError):
        read_verdict(PLAIN[:-1], LABELS, cut_off=True)


LONG = ("<think>", "{", "[{", '{"a": "', "K7QX 0.7, ", "1 (", "- a\n", "。", "[THINK]", "</a>")


@pytest.mark.parametrize("unit", LONG)
def test_a_long_reply_is_read(unit):
    """Within the limit of every test: with time in proportion to the square of the length it would take longer."""
    with suppress(VerdictError):
        read_verdict(f"{PLAIN}\n{unit * (3_000_000 // len(unit))}", LABELS)


MEMBER_INDICES = {"K7QX": (1,), "W3RT": (0, 2), "M4TD": ()}

NAMED = {
    "K7QX looked first.": "Attempt 2 looked first.",
    "better than trajectory K7QX, worse than [W3RT]": "better than attempt 2, worse than attempts 1 and 3",
    "Trajectory K7QX's refund": "Attempt 2's refund",
    "see **K7QX** and `W3RT`": "see **attempt 2** and attempts 1 and 3",
    "k7qx and K7QXa": "Attempt 2 and attempt 2",
    "looks 1: K7QXb is kind": "looks 1: attempt 2 is kind",
    "as good as M4TD": "as good as a reference attempt",
    "AK7QX, K7QX9 and K7QXab are others": "AK7QX, K7QX9 and K7QXab are others",
    "优于K7QX": "优于attempt 2",
    "so is (trajectory k7qx), with a Kelvin sign \u212a7QX": "so is (attempt 2), with a Kelvin sign attempt 2",
    "": "",
}


@pytest.mark.parametrize("text", NAMED)
def test_labels_become_numbers_of_attempts(text):
    assert name_attempts(text, MEMBER_INDICES) == NAMED[text]


def test_the_schema_is_the_same_for_all_orders_of_the_labels():
    entry = reply_schema(["W3RT", "K7QX"])["properties"]["scores"]["items"]
    assert entry["properties"]["trajectory_id"]["enum"] == ["K7QX", "W3RT"]
    assert reply_schema(["W3RT", "K7QX"]) == reply_schema(["K7QX", "W3RT"])
