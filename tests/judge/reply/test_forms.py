import json

import pytest

from gavel.judge.reply.errors import VerdictError
from gavel.judge.reply.verdict import read_verdict

LABELS = ("K7QX", "W3RT", "B9FD")
SCORES = dict(zip(LABELS, (0.9, 0.5, 0.1), strict=True))
ENTRIES = [
    {"trajectory_id": label, "explanation": f"{label} did its part, {score}.", "score": score}
    for label, score in SCORES.items()
]
WHOLE = {"scores": ENTRIES}
INDENTED = json.dumps(WHOLE, indent=1)


def read(reply: str) -> dict[str, float]:
    return {label: scored.score for label, scored in read_verdict(reply, LABELS).scores.items()}


@pytest.mark.parametrize(
    "item",
    [
        "swap K7QX and B9FD",
        "lower is better",
        0.4,
        None,
        True,
        ["K7QX", 0.4],
        {"note": "swap the first two"},
        {"trajectory_id": "scale", "score": 10},
        {"trajectory_id": "AVERAGE", "explanation": "all too high by 0.3", "score": 0.2},
        {"trajectory_id": "note", "explanation": "swap K7QX and B9FD"},
        {"trajectory_id": "note", "explanation": "too high", "score": 0},
    ],
    ids=str,
)
def test_nothing_but_entries_may_stand_among_the_entries(item):
    with pytest.raises(VerdictError):
        read(json.dumps({"scores": [*ENTRIES, item]}))
    with pytest.raises(VerdictError):
        read(json.dumps([item, *ENTRIES]))


def test_an_entry_of_a_label_that_was_never_given_out_is_left_out():
    assert read(json.dumps({"scores": [*ENTRIES, {"trajectory_id": "ZZZ9", "score": 7}]})) == SCORES


@pytest.mark.parametrize(
    "name",
    [
        *("input", "rejected", "question", "request", "wrong", "bad", "mock", "counterexample", "hypothesis"),
        *("other_judge", "baseline", "prompt", "v1", "tmp", "loss", "costs", "reasoning_content", "ledger"),
    ],
)
def test_scores_under_a_name_that_is_not_of_an_answer_are_none(name):
    with pytest.raises(VerdictError):
        read(json.dumps({name: WHOLE}))
    with pytest.raises(VerdictError):
        read(json.dumps({name: ENTRIES}))


@pytest.mark.parametrize(
    "name",
    [
        *("result", "results", "output", "answer", "response", "verdict", "evaluation", "scores", "data", "judgement"),
        "Final evaluation",
    ],
)
def test_scores_under_a_name_of_an_answer_are_read(name):
    assert read(json.dumps({name: WHOLE})) == SCORES
    assert read(json.dumps({name: ENTRIES})) == SCORES


@pytest.mark.parametrize(
    "call",
    [
        {"name": "submit_scores", "arguments": json.dumps(WHOLE)},
        {"name": "judge", "arguments": WHOLE},
        {"type": "tool_use", "id": "toolu_1", "name": "score_trajectories", "input": WHOLE},
        {"role": "assistant", "content": json.dumps(WHOLE)},
    ],
    ids=str,
)
def test_a_call_that_submits_scores_is_read(call):
    assert read(json.dumps(call)) == SCORES


@pytest.mark.parametrize(
    "call",
    [
        {"name": "discard_scores", "arguments": json.dumps(WHOLE)},
        {"type": "tool_use", "name": "submit_draft", "input": WHOLE},
        {"role": "user", "content": json.dumps(WHOLE)},
        [{"role": "user", "content": json.dumps(WHOLE)}],
        [{"type": "thinking", "thinking": json.dumps(WHOLE)}],
    ],
    ids=str,
)
def test_a_call_that_does_not_submit_scores_gives_none(call):
    with pytest.raises(VerdictError):
        read(json.dumps(call))


@pytest.mark.parametrize(
    "comment",
    [
        *(
            "// 0.4",
            "/* really 0.4 */",
            "# lower this",
            "// draft",
            "// out of 10",
            "// 暂定",
            "// too high?",
            "// 4/10",
        ),
        *("// TODO verify", "// placeholder", "// = W3RT", "/* was B9FD's */", "// unsure", "// ???", "// example"),
        *("// not evaluated", "// copied from the previous judge", "// vorläufig", "// -> 0.4", "// should be last"),
    ],
)
def test_a_comment_that_may_change_a_score_is_refused(comment):
    with pytest.raises(VerdictError):
        read(INDENTED.replace('"score": 0.9', f'"score": 0.9 {comment}'))
    with pytest.raises(VerdictError):
        read(INDENTED.replace("{\n", "{\n" + comment + "\n", 1))


@pytest.mark.parametrize("comment", ["// best", "// verified everything", "/* best */", "# worst", "// note"])
def test_a_harmless_comment_is_passed_over(comment):
    assert read(INDENTED.replace('"score": 0.9', f'"score": 0.9 {comment}')) == SCORES


def test_what_looks_like_a_comment_in_a_string_is_none():
    url = INDENTED.replace("K7QX did its part", "see https://x.org/a 4/10 # 3")
    assert read(url.replace('"score": 0.9', '"score": 0.9 // best')) == SCORES
