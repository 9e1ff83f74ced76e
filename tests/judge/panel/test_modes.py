import pytest

from gavel.judge.errors import JudgeError
from gavel.judge.panel.aggregate import AggregateScore, Answer
from gavel.judge.panel.modes import Anchored, Groupwise, Mode, Pairwise, choose_mode
from gavel.judge.panel.schedule import group_schedule, pair_schedule


def never() -> int:
    raise AssertionError("called")


def score(mode: Mode, answers: list[Answer], members: int, fixed: dict[int, float] | None = None) -> list[float]:
    scores = mode.aggregate(answers, members, fixed or {})
    return [aggregate.score for aggregate in scores.values() if isinstance(aggregate, AggregateScore)]


def test_a_mode_is_chosen_by_its_name_and_anchors_make_groupwise_anchored():
    assert isinstance(choose_mode("groupwise", has_anchors=False), Groupwise)
    assert isinstance(choose_mode("groupwise", has_anchors=True), Anchored)
    assert isinstance(choose_mode("pairwise", has_anchors=False), Pairwise)
    assert [mode.name for mode in (Groupwise(), Anchored(), Pairwise())] == ["groupwise", "anchored", "pairwise"]


def test_anchors_cannot_be_used_with_pairs_and_an_unknown_mode_is_refused():
    with pytest.raises(JudgeError, match="anchors cannot be used with them"):
        choose_mode("pairwise", has_anchors=True)
    with pytest.raises(JudgeError, match="there is no mode 'best'"):
        choose_mode("best", has_anchors=False)


def test_groupwise_and_anchored_schedules_respect_what_fits_a_prompt():
    for mode in (Groupwise(), Anchored()):
        assert mode.schedule(6, [2, 1], "s", {}, lambda: 6) == group_schedule(6, [2, 1], "s")
        assert mode.schedule(6, [2], "s", {5: 1.0}, lambda: 3) == group_schedule(6, [2], "s", [5], 3)
        assert max(len(shown) for shown in mode.schedule(6, [2], "s", {}, lambda: 3)[0]) <= 3


def test_a_schedule_of_pairs_counts_no_tokens():
    assert Pairwise().schedule(6, [2, 1], "s", {}, never) == pair_schedule(6, [2, 1], "s")


def test_each_mode_aggregates_in_its_own_way():
    answers = [Answer(0, 0, 1.0, {0: 0.2, 1: 0.6}), Answer(1, 0, 1.0, {1: 0.8, 0: 0.4})]
    assert score(Groupwise(), answers, 2) == pytest.approx([0.3, 0.7])
    assert score(Anchored(), answers, 2, {0: 0.5}) == pytest.approx([0.5, 0.9])
    weaker, stronger = score(Pairwise(), answers, 2)
    assert weaker + stronger == pytest.approx(1)
    assert weaker < 0.5
