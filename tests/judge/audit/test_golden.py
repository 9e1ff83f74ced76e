import json
from random import Random

import pytest

from gavel.judge.audit.golden import (
    ChangedVerdict,
    GoldenGroup,
    GoldenResult,
    changed_verdicts,
    check_golden,
    golden_scores,
    jury_weights,
    load_golden,
)
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.prompt.fenced_transcript import read_transcripts

ASK = {"role": "user", "content": "Add 2 and 2."}


def golden(name: str = "sum", **members: str) -> GoldenGroup:
    """A group of which each member says one thing; the first is the best, and so on."""
    said = {member: [{"role": "assistant", "content": text}] for member, text in members.items()}
    return GoldenGroup(name=name, opening=[ASK], members=said, order=[[member] for member in members])


def knows(groups: list[GoldenGroup], sign: int = 1):
    """A judge that has read the right order of these groups."""
    place = {
        str(member): len(group.order) - tier
        for group in groups
        for tier, names in enumerate(group.order)
        for name, member in zip(group.members, map(_ending, group.members.values()), strict=True)
        if name in names
    }

    async def judge(messages, schema):
        shown = read_transcripts(messages[1]["content"])
        quality = {label: place[str(_shown(attempt))] for label, attempt in shown.items()}
        return json.dumps({label: 0.5 + sign * value / 20 for label, value in quality.items()})

    return judge


def _ending(messages) -> list[str]:
    calls = [call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()]
    return [*calls, messages[-1]["content"]]


def _shown(attempt) -> list[str]:
    (conversation,) = attempt
    calls = [event.name for event in conversation.events if hasattr(event, "name")]
    return [*calls, conversation.events[-1].text]


def result(group: GoldenGroup, **scores: float) -> GoldenResult:
    return GoldenResult(group, scores)


def test_the_shipped_set_speaks_of_many_things_and_more_than_one_language():
    groups = load_golden()
    assert len(groups) >= 12
    assert all(group.shows and 2 <= len(group.members) <= 6 for group in groups)
    text = json.dumps([group.model_dump() for group in groups], ensure_ascii=False)
    assert any("\u4e00" <= character <= "\u9fff" for character in text)
    assert "Mehrwertsteuer" in text


async def test_a_judge_that_knows_the_order_is_right_throughout_and_its_opposite_nowhere():
    groups = load_golden()
    for sign, share in ((1, 1.0), (-1, 0.0), (0, 0.0)):
        results = await check_golden(Judge(knows(groups, sign)), groups)
        assert [each.reason for each in results] == [""] * len(groups)
        assert {each.agreement for each in results} == {share}
        assert sum(each.right for each in results) == share * sum(len(group.pairs) for group in groups)


async def test_a_group_that_was_not_judged_in_full_has_no_verdicts():
    asked = 0

    async def fails_once(messages, schema):
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ValueError("no idea")
        labels = read_transcripts(messages[1]["content"])
        return json.dumps(dict.fromkeys(labels, 0.5))

    (one,) = await check_golden(Judge(fails_once, orders=2), [golden(good="4", bad="5")])
    assert (one.scores, one.agreement, one.right, one.violated) == ({}, None, 0, [])
    assert "no idea" in one.reason


def test_only_verdicts_that_turned_are_told():
    first, second, other = golden("1", a="4", b="5"), golden("2", a="4", b="5"), golden("3", a="4", b="5")
    results = [result(first, a=0.4, b=0.6), result(second, a=0.7, b=0.6), result(other, a=0.5, b=0.6)]
    before = {"1": {"a": 0.9, "b": 0.1}, "2": {"a": 0.1, "b": 0.1}, "3": {"a": 0.2, "b": 0.9}, "4": {"x": 1.0}}
    assert list(changed_verdicts(results, before)) == [
        ChangedVerdict("1", "a", "b", (0.9, 0.1), (0.4, 0.6)),
        ChangedVerdict("2", "a", "b", (0.1, 0.1), (0.7, 0.6)),
    ]
    assert [each.is_right for each in changed_verdicts(results, before)] == [False, True]
    assert list(changed_verdicts(results, {"1": {"a": 0.9, "c": 0.1}})) == []
    assert list(changed_verdicts([GoldenResult(first, {}, "down")], before)) == []


GOOD = golden(a="4", b="5").model_dump()


@pytest.mark.parametrize(
    "groups",
    [
        "[",
        [],
        [GOOD, GOOD],
        [{**GOOD, "order": [["a"]]}],
        [{**GOOD, "order": [["a", "b"]]}],
        [{**GOOD, "members": {"a": [ASK], "b": []}}],
        [{**GOOD, "ordre": []}],
        None,
    ],
)
def test_a_file_that_is_no_golden_set_is_named(tmp_path, groups):
    path = tmp_path / "mine.json"
    if groups is not None:
        path.write_text(groups if isinstance(groups, str) else json.dumps(groups))
    with pytest.raises(JudgeError, match=r"mine\.json"):
        load_golden(path)


def drawn(noises: dict[str, float], count: int = 200, members: int = 6) -> list[dict[str, list[tuple[float, float]]]]:
    random = Random(0)
    groups = []
    for _ in range(count):
        truth = [random.gauss() for _ in range(members)]
        groups.append({judge: [(t + noise * random.gauss(), t) for t in truth] for judge, noise in noises.items()})
    return groups


def test_weights_are_close_to_those_of_the_best_combination():
    weights = jury_weights(drawn({"good": 0.5, "poor": 2.0}, members=20))
    # With errors of these sizes the best weights of standardised scores are 1/0.25·√1.25 to 1/4·√5.
    assert weights["good"] / weights["poor"] == pytest.approx(8, rel=0.15)
    assert sum(weights.values()) == pytest.approx(2)


async def test_a_golden_set_tells_the_juror_that_knows_from_the_one_that_errs():
    groups: list[GoldenGroup] = [golden(f"g{n}", good=f"right {n}", fair=f"near {n}", bad=f"far {n}") for n in range(5)]
    wise, wrong = knows(groups), knows(groups, -1)
    wise.__qualname__, wrong.__qualname__ = "wise", "wrong"
    results = await check_golden(Judge([wise, wrong], orders=2), groups)
    weights = jury_weights(golden_scores(results))
    assert weights["wise"] > 20 * weights["wrong"] > 0
