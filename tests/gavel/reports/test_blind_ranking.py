"""Wins of contenders over each other, from groups that a judge scored."""

import pytest

from gavel.reports.blind_ranking import blind_ranking
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, Judgement
from gavel.scenarios.trajectory import Trajectory


def group(**scores: float | None) -> TrajectoryGroup:
    return TrajectoryGroup(
        Trajectory(
            messages_and_choices=[{"role": "user", "content": name}],
            metadata={"model": name},
            judgement=Judgement(score=score, reason=None if score is not None else "refused"),
        )
        for name, score in scores.items()
    )


SEEDS = {
    0: [group(base=0.1, hand=0.2, judge=0.9), group(base=0.3, hand=0.3, judge=0.8)],
    1: [group(base=0.5, hand=0.2, judge=0.9), group(base=0.5, hand=0.2, judge=None)],
}
NAMES = ["base", "hand", "judge"]


def test_a_tie_is_half_a_win_and_what_has_no_score_is_no_loss():
    ranking = blind_ranking(SEEDS, NAMES, ["x/y"], rubric="Short.", cost="0.10 USD")
    assert {seed: mean.value for seed, mean in ranking.pairs["base", "hand"].by_seed.items()} == {0: 0.25, 1: 1.0}
    assert ranking.pairs["base", "hand"].over_seeds.value == pytest.approx(0.625)
    assert ranking.overall["judge"].over_seeds.value == 1.0
    assert (ranking.tasks, ranking.unscored) == (4, 1)
    assert ranking.unscored_text == "1 attempt unscored (mostly: refused)"


def test_who_beats_whom_is_the_same_from_both_sides():
    ranking = blind_ranking(SEEDS, NAMES, ["x/y"])
    forth, back = ranking.beats("base", "hand"), ranking.beats("hand", "base")
    assert forth is not None
    assert back is not None
    assert back.over_seeds.value == pytest.approx(1 - forth.over_seeds.value)
    for seed, mean in forth.by_seed.items():
        assert back.by_seed[seed].low == pytest.approx(1 - mean.high)
    assert ranking.beats("base", "base") is None


def test_one_seed_has_the_interval_of_its_tasks_and_several_that_of_the_seeds():
    wins = [group(a=1.0, b=0.0)] * 12 + [group(a=0.0, b=1.0)] * 4
    one = blind_ranking({0: wins}, ["a", "b"], ["x"])
    assert one.pairs["a", "b"].text.startswith("0.75 (0.")
    two = blind_ranking({0: wins, 1: wins[4:]}, ["a", "b"], ["x"])
    assert two.pairs["a", "b"].text.startswith("0.71 ± ")


def test_identical_attempts_about_which_no_judge_was_asked_are_tied():
    same = group(a=None, b=None).model_copy(update={"judgement": GroupJudgement(status="degenerate")})
    ranking = blind_ranking({0: [same, group(a=1.0, b=0.0)]}, ["a", "b"], ["x"])
    assert ranking.pairs["a", "b"].over_seeds.value == 0.75
    assert (ranking.unscored, ranking.unscored_text) == (0, "")
