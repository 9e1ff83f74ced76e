import json
import re
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.judge.reply.errors import VerdictError
from gavel.judge.reply.verdict import read_verdict, reply_schema
from tests.judge.reply.honest import honest_replies, honest_reply
from tests.judge.reply.malformed import malformed_reply
from tests.judge.reply.refused import REFUSED

LABELS = ("K7QX", "W3RT", "M4TD")
EXPECTED = {"K7QX": 0.9, "W3RT": 0.2, "M4TD": 0.5}


def entries(values=EXPECTED):
    return [{"trajectory_id": label, "explanation": "why", "score": score} for label, score in values.items()]


def values_of(reply: str) -> dict[str, float]:
    return {label: scored.score for label, scored in read_verdict(reply, LABELS).scores.items()}


PLAIN = json.dumps({"scores": entries()})
DRAFT = json.dumps({"scores": entries(dict.fromkeys(LABELS, 0.1))})

GOOD = {
    "plain": PLAIN,
    "in a code fence, with prose": f"Here are the scores:\n```json\n{PLAIN}\n```\nLet me know!",
    "prose with brackets around it": f"I looked at [K7QX] and others.\n{PLAIN}\nThat is [all].",
    "after thinking": f"<think>maybe {DRAFT}</think>{PLAIN}",
    "after a draft": f"Draft: {DRAFT}\nFinal: {PLAIN}",
    "sorted by score": json.dumps({"scores": sorted(entries(), key=lambda entry: entry["score"])}),
    "a bare list": json.dumps(entries()),
    "wrapped": json.dumps({"Response": {"scores": entries()}}),
    "wrapped, the wrapper never closed": json.dumps({"Response": {"scores": entries()}})[:-1],
    "a map": json.dumps(EXPECTED),
    "a map under scores": json.dumps({"scores": EXPECTED}),
    "a map of objects": json.dumps({label: {"score": score, "reason": "why"} for label, score in EXPECTED.items()}),
    "keys in capitals": PLAIN.replace("score", "Score").replace("trajectory_id", "Trajectory_ID"),
    "labels in small letters": PLAIN.lower(),
    "labels dressed up": PLAIN.replace('"K7QX"', '"trajectory_K7QX"').replace('"W3RT"', '"Trajectory [W3RT]"'),
    "percent": PLAIN.replace("0.9", '"90%"').replace("0.2", '"20 %"').replace("0.5", '"50%"'),
    "decimal commas": PLAIN.replace("0.9", '"0,9"').replace("0.2", '"0,2"').replace("0.5", '"0,5"'),
    "a duplicate that agrees": json.dumps({"scores": [*entries(), entries()[0]]}),
    "a label never given out": json.dumps({"scores": [*entries(), {"trajectory_id": "ZZZZ", "score": 7}]}),
    "raw line breaks in a string": PLAIN.replace("why", "line one\nline two", 1),
    "fractions": PLAIN.replace("0.9", '"9/10"').replace("0.2", '"2 out of 10"').replace("0.5", '"0.5/1"'),
    "bare percentages and fractions": PLAIN.replace("0.9", "90%").replace("0.2", "1/5").replace("0.5", "50 %"),
    "bare decimal commas": PLAIN.replace("0.9", "0,9").replace("0.2", "0,2"),
    "numbers as strings": PLAIN.replace("0.9", '".9"').replace("0.2", '"0.20"').replace("0.5", '"5e-1"'),
    "an object a line": "\n".join(map(json.dumps, entries())),
    "an object an entry, in a list of points": "\n".join(f"- `{json.dumps(entry)}`" for entry in entries()),
    "a list of maps": json.dumps([{label: score} for label, score in EXPECTED.items()]),
    "other names for the keys": PLAIN.replace("trajectory_id", "Label").replace('"score"', '"rating"'),
    "labels in scores' names": json.dumps({f"{label}_score": score for label, score in EXPECTED.items()}),
    "a map under a name that says nothing": json.dumps({"Final evaluation": {"trajectories": EXPECTED}}),
    "a map with its scale": json.dumps({"scale": "from 0 to 1", "scores": EXPECTED}),
    "the range of a score beside it": PLAIN.replace('"score": 0.9', '"min": 0.8, "max": 0.95, "score": 0.9'),
    "entries under a name of results": json.dumps({"evaluations": entries()}),
    "wrapped twice": json.dumps({"result": {"evaluation": {"scores": entries()}}}),
    "wrapped beside a draft": json.dumps(
        {"draft": {"scores": entries(dict.fromkeys(LABELS, 0.1))}, "final": entries()}
    ),
    "wrapped beside other numbers": json.dumps({"confidence": dict.fromkeys(LABELS, 0.1), "scores": entries()}),
    "encoded twice": json.dumps(PLAIN),
    "encoded twice without the outer quotes": json.dumps(PLAIN)[1:-1],
    "encoded three times": json.dumps(json.dumps(PLAIN)),
    "encoded twice in a wrapper": json.dumps({"name": "submit", "arguments": PLAIN}),
    "after thoughts whose beginning is missing": f"perhaps {DRAFT} or so</think>\n{PLAIN}",
    "after thoughts that break off in an object": '<think>so {"scores": [{</think>' + PLAIN,
    "after thoughts without a beginning that break off in an object": 'so {"scores": ["</think>' + PLAIN,
    "after the form that was asked for": 'I fill in {"scores": [{"trajectory_id": "K7QX", "score": <number>}, ...]}:'
    + PLAIN,
    "braces in prose after it": PLAIN + "\nSo {K7QX} is best.",
    "one closing brace too many": PLAIN + "}",
    "without the last brace": json.dumps({"scores": entries()})[:-1],
    "without the last brace, in a fence": f"```json\n{PLAIN[:-1]}\n```",
    "without a closing bracket within": PLAIN.replace("]}", "}"),
    "a note in a key given twice": PLAIN.replace('"explanation": "why"', '"explanation": "a", "explanation": "b"'),
    "thinking aloud in an explanation": PLAIN.replace("why", "it wrote <think> and </think>", 1),
}

BAD = {
    "empty": ("", "empty"),
    "a refusal": ("I'm sorry, but I can't evaluate these trajectories.", "no complete JSON object"),
    "an empty object": ("{}", "no complete JSON object"),
    "the schema": (json.dumps(reply_schema(LABELS)), "no complete JSON object"),
    "positions instead of labels": ('{"scores": [0.9, 0.2, 0.5]}', "no complete JSON object"),
    "a label is missing": (json.dumps({"scores": entries()[:2]}), "no score for M4TD"),
    "a conflict": (json.dumps({"scores": [*entries(), entries({"K7QX": 0.1})[0]]}), "K7QX has two different scores"),
    "a key given twice": ('{"K7QX": 0.9, "K7QX": 0.1, "W3RT": 0.2, "M4TD": 0.5}', "two different scores"),
    "a key given twice in other letters": (
        PLAIN.replace('"score": 0.9', '"score": 0.9, "Score": 0.1'),
        "two different",
    ),
    "a scale of ten": (PLAIN.replace("0.9", "9.0"), "score of K7QX is 9.0, not from 0 to 1"),
    "a string on a scale of ten": (PLAIN.replace("0.9", '"9"'), "not a number"),
    "a percentage that may be none": (PLAIN.replace("0.9", '"0.9%"'), "not a number"),
    "a fraction that may be none": (PLAIN.replace("0.9", '"0.9/10"'), "not a number"),
    "more than all of ten": (PLAIN.replace("0.9", '"11/10"'), "not a number|not from 0 to 1"),
    "nothing of nothing": (PLAIN.replace("0.9", '"0/0"'), "not a number"),
    "a number and a remark": (PLAIN.replace("0.9", '"0.9 (good)"'), "not a number"),
    "an unfinished number": (PLAIN.replace("0.9", '"0."'), "not a number"),
    "a leading nought": (PLAIN.replace("0.9", "09"), "not a number"),
    "a list for a score": (PLAIN.replace("0.9", "[0.9]"), "not a number"),
    "two names for the score": (PLAIN.replace('"score": 0.9', '"score": 0.9, "rating": 0.1'), "two different scores"),
    "two ids in an entry": (PLAIN.replace('"explanation"', '"id": "W3RT", "explanation"', 1), "K7QX and W3RT"),
    "an id given twice": (PLAIN.replace('"explanation"', '"trajectory_id": "W3RT", "explanation"', 1), "K7QX and W3RT"),
    "other labels": (PLAIN.replace("K7QX", "ZZZZ"), "no score for K7QX; ZZZZ is none of the ids"),
    "numbers that may be no scores": (json.dumps({"penalties": EXPECTED}), "under 'penalties'\", not a number"),
    "numbers that may be no scores beside a copy": (
        json.dumps({"errors": dict.fromkeys(LABELS, 0), "evaluation": EXPECTED}),
        "under 'errors'\", not a number",
    ),
    "numbers that may be the scores of one criterion": (json.dumps({"style_scores": EXPECTED}), "not a number"),
    "a scale of ten, told beside a score": (
        PLAIN.replace('"score": 0.9', '"score": 0.9, "max_score": 10'),
        "on a scale up to 10",
    ),
    "a scale of a hundred, told once": (json.dumps({"scale": "0-100", "scores": EXPECTED}), "on a scale up to 100"),
    "numbers that are no scores": (json.dumps({"confidence": EXPECTED}), "no complete JSON object"),
    "labels with something beside them": (
        json.dumps({f"{label}_confidence": score for label, score in EXPECTED.items()}),
        "no complete JSON object",
    ),
    "two wrapped answers": (json.dumps({"result": EXPECTED, "data": entries({"K7QX": 0.1})}), "two different scores"),
    "only a draft": (json.dumps({"draft": {"scores": entries()}}), "no complete JSON object"),
    "only thoughts without a beginning": (f"I think {PLAIN}</think> That is it.", "no complete JSON object"),
    "a correction of one entry": (PLAIN + json.dumps(entries({"K7QX": 0.1})), "two different scores"),
    "another score of one entry before it": (json.dumps(entries({"K7QX": 0.1})) + PLAIN, "two different scores"),
    "a draft within something broken": (
        f'{{"evaluation": <see below>, "draft": {json.dumps(EXPECTED)}, "final": <see above>}}',
        "not valid JSON",
    ),
    "plain lines": ("\n".join(f"Trajectory {label}: {score}" for label, score in EXPECTED.items()), "no complete JSON"),
    "encoded twice and broken off": (json.dumps(PLAIN[:-30]), "breaks off"),
    "a quote that is missing": (
        json.dumps([*entries(), *entries({"W3RT": 0.2})]).replace('why", "score": 0.9', 'why, "score": 0.9'),
        "not valid JSON",
    ),
    "a thousand": (PLAIN.replace("0.9", '"1,000"'), "not a number"),
    "below zero": (PLAIN.replace("0.9", "-0.1"), "not from 0 to 1"),
    "not a number": (PLAIN.replace("0.9", "NaN"), "not from 0 to 1"),
    "infinity": (PLAIN.replace("0.9", "1e400"), "not from 0 to 1"),
    "null": (PLAIN.replace("0.9", "null"), "null, not a number"),
    "a truth value": (PLAIN.replace("0.9", "true"), "true, not a number"),
    "a word": (PLAIN.replace("0.9", '"good"'), "not a number"),
    "more than all percent": (PLAIN.replace("0.9", '"190%"'), "not from 0 to 1"),
    "broken off": (PLAIN[:-30], "breaks off"),
    "a draft, then a reply that breaks off": (f"{DRAFT}\nFinal: " + '{"scores": [{"trajectory_id": "K7', "breaks off"),
    "a draft in thoughts, then nothing": (f"<think>{DRAFT}</think>", "no complete JSON object"),
    "a draft in thoughts that never end": (f"<think>hmm {PLAIN}", "breaks off"),
    "a draft, then thoughts that never end": (f"{DRAFT}\n<think>or rather {PLAIN}", "breaks off"),
    "a draft, then nothing of what was to follow": (f"{DRAFT}\nFinal:", "breaks off"),
    "an id that names two": (PLAIN.replace('"K7QX"', '"K7QX and W3RT"'), "no score for K7QX"),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_reply_that_can_be_meant_in_one_way_is_read(case):
    assert values_of(GOOD[case]) == EXPECTED


@pytest.mark.parametrize("case", BAD)
def test_a_reply_that_cannot_be_used_says_what_is_wrong(case):
    reply, problem = BAD[case]
    with pytest.raises(VerdictError, match=problem):
        read_verdict(reply, LABELS)


def test_explanations_come_with_their_scores():
    read = read_verdict(PLAIN.replace("why", "because", 1), LABELS).scores
    assert (read["K7QX"].explanation, read["W3RT"].explanation) == ("because", "why")


def test_everything_that_is_wrong_is_named_at_once():
    with pytest.raises(VerdictError) as problem:
        read_verdict(json.dumps({"scores": entries({"K7QX": 9, "W3RT": True})}), LABELS)
    assert problem.value.message == (
        "the score of K7QX is 9, not from 0 to 1; the score of W3RT is true, not a number; there is no score for M4TD"
    )


def test_the_schema_is_the_same_for_all_orders_of_the_labels():
    entry = reply_schema(["W3RT", "K7QX"])["properties"]["scores"]["items"]
    assert entry["properties"]["trajectory_id"]["enum"] == ["K7QX", "W3RT"]
    assert reply_schema(["W3RT", "K7QX"]) == reply_schema(["K7QX", "W3RT"])


def test_a_reply_of_nothing_but_braces_ends():
    with pytest.raises(VerdictError):
        read_verdict('{"a":' * 2000, LABELS)
    with pytest.raises(VerdictError):
        read_verdict("[" * 500 + json.dumps(EXPECTED) + "]" * 500, LABELS)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-2, 12) | st.sampled_from([*LABELS, "90%", "0,5", "x"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*LABELS, "scores", "score", "trajectory_id", "id", "x"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.text(max_size=20), json_values, st.text(max_size=20))
def test_any_reply_gives_all_labels_a_score_in_range_or_is_refused(before, value, after):
    try:
        read = values_of(before + json.dumps(value) + after)
    except VerdictError:
        return
    assert list(read) == list(LABELS)
    assert all(isinstance(score, float) and 0 <= score <= 1 for score in read.values())


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3), st.permutations(range(3)), st.data())
def test_a_reply_cut_anywhere_is_refused_or_read_right(scores, order, data):
    expected = dict(zip(LABELS, scores, strict=True))
    listed = entries(expected)
    reply = json.dumps({"scores": [listed[place] for place in order]})
    cut = data.draw(st.integers(0, len(reply)))
    try:
        assert values_of(reply[:cut]) == expected
    except VerdictError:
        assert cut < len(reply)


SCORES = st.sampled_from([0.05, 0.15, 0.25, 0.5, 0.75, 0.95])
WHY = ("why", 'said "hi" twice', "it's {fine}, truly", "like W3RT, but slower", "a, b: c // d", "")
MORE = {"K7QX": " again", "W3RT": ""}
"""What makes explanations differ, as scores do."""
WRITTEN = (
    json.dumps,
    repr,
    lambda value: json.dumps(value, indent=1),
    lambda value: re.sub(r'(?<!\\)"', "”", json.dumps(value)),
    lambda value: re.sub(r'"(\w+)":', r"\1:", json.dumps(value)),
    lambda value: json.dumps(value).replace('\\"', '"'),
    lambda value: json.dumps(json.dumps(value)),
    lambda value: re.sub(r",(?= *\")", ", // note\n", json.dumps(value)),
)
THOUGHT = '{"K7QX": 0.1}'
"""No whole answer: a reply that breaks off after one in thoughts whose tag is lost looks as if it were finished."""
WRAPPED = (
    lambda reply: reply,
    lambda reply: f"Here:\n```json\n{reply}\n```\nDone [x].",
    lambda reply: f"<think>maybe {THOUGHT}</think>{reply}",
    lambda reply: f"Not yet: {THOUGHT}</think>{reply}",
)
NOISE = [
    *"\"'”{}[]:,;\\/#* \nabXQ<>`-_=.",
    *LABELS,
    '"score":',
    "},{",
    "null",
    "//",
    "/*",
    "*/",
    "```",
    "</think>",
    "<think>",
]


@st.composite
def replies(draw):
    """A reply as models write it, and its scores."""
    scores = {label: draw(SCORES) for label in LABELS}
    listed = [
        {
            "trajectory_id": label,
            "explanation": draw(st.sampled_from(WHY)) + MORE.get(label, ""),
            "score": scores[label],
        }
        for label in draw(st.permutations(LABELS)) + draw(st.lists(st.sampled_from(LABELS), max_size=2))
    ]
    value = draw(st.sampled_from([{"scores": listed}, listed, scores, {"result": {"scores": listed}}]))
    return draw(st.sampled_from(WRAPPED))(draw(st.sampled_from(WRITTEN))(value)), scores


@given(replies())
def test_a_reply_as_models_write_it_is_read(written):
    reply, scores = written
    assert values_of(reply) == scores


@pytest.mark.slow
@given(replies(), st.data())
@settings(max_examples=400)
def test_a_mutated_reply_is_refused_or_read_right(written, data):
    """Characters are lost, come in or are replaced anywhere but in a number, and the reply may break off."""
    reply, scores = written
    for _ in range(data.draw(st.integers(1, 2))):
        numbers = [range(number.start(), number.end()) for number in re.finditer(r"\d*\.\d+", reply)]
        place = data.draw(st.integers(0, len(reply)))
        end = min(len(reply), place + data.draw(st.integers(0, 3)))
        if not any(place < number.stop and number.start < max(end, place + 1) for number in numbers):
            reply = reply[:place] + data.draw(st.sampled_from(["", *NOISE])) + reply[end:]
    if data.draw(st.booleans()):
        reply = reply[: data.draw(st.integers(0, len(reply)))]
    with suppress(VerdictError):
        assert values_of(reply) == scores


def test_every_repair_is_counted_by_kind():
    reply = "<think>hm</think>Here:\n```\n" + repr({"result": EXPECTED | {"K7QX": "90%"}}) + "\n```"
    repairs = read_verdict(reply, LABELS).repairs
    assert repairs == {"thoughts": 1, "prose": 1, "fence": 1, "quotes": 5, "wrapper": 1, "form": 1, "number": 1}
    assert not read_verdict(PLAIN, LABELS).repairs


@pytest.mark.slow
def test_honest_replies_are_read_and_fewer_than_one_in_a_hundred_is_refused():
    refused = 0
    drawn = (honest_reply(Random(seed)) for seed in range(1_500))
    for reply, means in (*honest_replies(), *drawn):
        try:
            assert {label: scored.score for label, scored in read_verdict(reply, list(means)).scores.items()} == means
        except VerdictError:
            refused += 1
    assert refused < 15


def wrong_among_malformed(seeds: range) -> list[str]:
    wrong = []
    for seed in seeds:
        reply, labels, means = malformed_reply(Random(seed))
        with suppress(VerdictError):
            if {label: scored.score for label, scored in read_verdict(reply, labels).scores.items()} != means:
                wrong.append(reply)
    return wrong


@pytest.mark.slow
def test_no_number_comes_of_a_reply_that_does_not_mean_it():
    assert wrong_among_malformed(range(4_000)) == []


@pytest.mark.slow
@pytest.mark.thorough
def test_no_number_comes_of_many_replies_that_do_not_mean_it():
    assert wrong_among_malformed(range(4_000, 30_000)) == []


@pytest.mark.parametrize("name", REFUSED)
def test_a_reply_whose_numbers_are_taken_back_in_any_way_is_refused(name):
    with pytest.raises(VerdictError):
        read_verdict(REFUSED[name], LABELS)


CUT_OFF = {
    "prose before it": f"Here are the scores:\n{PLAIN}",
    "prose after it": f"{PLAIN}\nI hope",
    "the last bracket is missing": PLAIN[:-1],
    "a draft before it": f"{DRAFT}\nFinal:\n{PLAIN}",
}


@pytest.mark.parametrize("case", CUT_OFF)
def test_of_a_reply_that_was_cut_off_only_a_whole_object_alone_is_taken(case):
    assert read_verdict(PLAIN, LABELS, cut_off=True).scores
    assert read_verdict(f"<think>maybe {DRAFT}</think>\n```json\n{PLAIN}\n```", LABELS, cut_off=True).scores
    with pytest.raises(VerdictError):
        read_verdict(CUT_OFF[case], LABELS, cut_off=True)


LONG = (
    "<think>",
    "{",
    "[{",
    '{"a": "',
    "K7QX 0.7, ",
    "Trajectory 1 ",
    "1 (",
    "lower, a, ",
    "- a\n",
    "。",
    "[THINK]",
    "</a>",
)


@pytest.mark.parametrize("unit", LONG)
def test_a_long_reply_is_read(unit):
    """Within the limit of every test: with time in proportion to the square of the length it would take longer."""
    with suppress(VerdictError):
        read_verdict(f"{PLAIN}\n{unit * (3_000_000 // len(unit))}", LABELS)


def test_an_explanation_may_tell_anything_that_an_agent_said_of_numbers_and_scales():
    why = 'It wrote \\"7/10 on a scale of 1 to 5, lower is better; wait, I mixed up W3RT: 0.3\\" to the user.'
    assert values_of(PLAIN.replace("why", why, 1)) == EXPECTED
