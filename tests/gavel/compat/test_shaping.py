"""The deprecated shaping of rewards: it still does what it did, and warns."""

import itertools
import math
import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel
from gavel.compat.shaping import NEAR_TIE, Shaping, ShapingKind, shape_group, shape_rewards
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory
from tests.judge.groups import desk

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated. set TrainConfig:DeprecationWarning")

KINDS: tuple[ShapingKind, ...] = ("raw", "centred", "rank", "shrunk")
kinds = st.sampled_from(KINDS)
scores_on_a_grid = st.lists(st.integers(0, 20).map(lambda twentieths: twentieths / 20), min_size=1, max_size=10)
members = st.lists(
    st.tuples(st.integers(0, 20).map(lambda twentieths: twentieths / 20), st.none() | st.floats(0, 0.5)),
    min_size=1,
    max_size=10,
)


def shaped(scores: list[float], kind: ShapingKind, errors: list[float | None] | None = None) -> list[float]:
    return shape_rewards(scores, errors or [None] * len(scores), Shaping(kind))


def group_of(*rewards: float | None, error: float | None = 0.1) -> TrajectoryGroup:
    judged = [Judgement(score=reward, standard_error=error) for reward in rewards]
    return TrajectoryGroup(
        Trajectory(messages_and_choices=[{"role": "assistant", "content": str(n)}], reward=reward, judgement=judgement)
        for n, (reward, judgement) in enumerate(zip(rewards, judged, strict=True))
    )


@given(members, kinds)
def test_no_kind_turns_an_order_round(members: list[tuple[float, float | None]], kind: ShapingKind) -> None:
    scores = [score for score, _ in members]
    rewards = shaped(scores, kind, [error for _, error in members])
    for one, other in itertools.permutations(range(len(scores)), 2):
        if scores[one] < scores[other]:
            assert rewards[one] <= rewards[other]
        if scores[one] == scores[other]:
            assert rewards[one] == rewards[other]


@given(scores_on_a_grid)
def test_raw_is_the_score(scores: list[float]) -> None:
    assert shaped(scores, "raw") == pytest.approx(scores, abs=1e-15)


@given(scores_on_a_grid)
def test_centred_rewards_are_distances_from_the_mean_and_sum_to_zero(scores: list[float]) -> None:
    mean = sum(scores) / len(scores)
    assert shaped(scores, "centred") == pytest.approx([score - mean for score in scores], abs=1e-12)
    assert math.fsum(shaped(scores, "centred")) == pytest.approx(0, abs=1e-12)


@given(scores_on_a_grid.filter(lambda scores: len(scores) > 1))
def test_a_rank_is_the_share_of_the_others_that_are_beaten(scores: list[float]) -> None:
    def beaten(score: float) -> float:
        lower, equal = sum(other < score for other in scores), sum(other == score for other in scores) - 1
        return (lower + equal / 2) / (len(scores) - 1)

    assert shaped(scores, "rank") == pytest.approx([beaten(score) for score in scores])


@given(members)
def test_shrunk_rewards_lie_between_the_score_and_the_mean(members: list[tuple[float, float | None]]) -> None:
    scores = [score for score, _ in members]
    mean = sum(scores) / len(scores)
    for score, reward in zip(scores, shaped(scores, "shrunk", [error for _, error in members]), strict=True):
        assert min(score, mean) - 1e-12 <= reward <= max(score, mean) + 1e-12


def test_shrinking_brings_noisy_scores_nearer_to_the_truth() -> None:
    random = Random(0)
    squares = {"raw": 0.0, "shrunk": 0.0}
    for _ in range(300):
        truth = [random.gauss(0.5, 0.1) for _ in range(8)]
        votes = [[quality + random.gauss(0, 0.2) for _ in range(4)] for quality in truth]
        scores = [statistics.fmean(of_member) for of_member in votes]
        errors: list[float | None] = [statistics.stdev(of_member) / 2 for of_member in votes]
        for kind in ("raw", "shrunk"):
            rewards = shaped(scores, kind, errors)
            squares[kind] += sum((r - q) ** 2 for r, q in zip(rewards, truth, strict=True))
    assert squares["shrunk"] < 0.8 * squares["raw"]


def test_a_noisy_group_is_drawn_together_and_a_sure_one_stays() -> None:
    assert shaped([0.4, 0.5, 0.6], "shrunk", [0.2, 0.2, 0.2]) == [0.5, 0.5, 0.5]
    assert shaped([0.0, 0.5, 1.0], "shrunk", [0.0, 0.0, 0.0]) == [0.0, 0.5, 1.0]
    assert shaped([0.0, 1.0], "shrunk", [0.5, 0.5]) == pytest.approx([0.25, 0.75])


def test_members_without_an_error_are_taken_to_err_as_the_others_do() -> None:
    assert shaped([0.0, 0.5, 1.0], "shrunk", [0.1, None, 0.1]) == shaped([0.0, 0.5, 1.0], "shrunk", [0.1, 0.1, 0.1])
    assert shaped([0.2, 0.9], "shrunk", [None, None]) == [0.2, 0.9]


@pytest.mark.parametrize("kind", KINDS)
def test_float_residue_is_no_difference(kind: ShapingKind) -> None:
    assert 0.1 + 0.2 != 0.3
    assert len(set(shaped([0.1 + 0.2, 0.3, 0.3], kind, [0.1, 0.1, 0.1]))) == 1
    rewards = shaped([0.1 + 0.2, 0.9, 0.3], "rank")
    assert rewards == [0.25, 1.0, 0.25]


@given(members, kinds, st.integers(0, 20).map(lambda twentieths: twentieths / 20))
def test_below_the_minimal_spread_all_get_the_same(
    members: list[tuple[float, float | None]], kind: ShapingKind, least: float
) -> None:
    scores, errors = [score for score, _ in members], [error for _, error in members]
    rewards = shape_rewards(scores, errors, Shaping(kind, min_spread=least))
    free = shape_rewards(scores, errors, Shaping(kind))
    if round(20 * (max(scores) - min(scores))) < round(20 * least):
        assert rewards == [pytest.approx(sum(free) / len(free), abs=1e-12)] * len(scores)
        assert len(set(rewards)) == 1
    else:
        assert rewards == free


def test_a_spread_of_just_the_least_is_a_signal_whatever_the_floats_say() -> None:
    assert 0.35 - 0.3 < 0.05
    assert shape_rewards([0.3, 0.35], [None, None], Shaping(min_spread=0.05)) == [0.3, 0.35]


def test_a_group_keeps_its_judgements_and_its_unscored_members() -> None:
    group = group_of(0.2, None, 0.8)
    got = shape_group(group, Shaping("rank"))
    assert [member.reward for member in got] == [0.0, None, 1.0]
    assert [member.judgement for member in got] == [member.judgement for member in group]
    assert [member.reward for member in group] == [0.2, None, 0.8]
    assert got.metrics == {}


def test_the_errors_of_the_judgements_do_the_shrinking() -> None:
    assert [member.reward for member in shape_group(group_of(0.0, 1.0, error=0.5), Shaping("shrunk"))] == [0.25, 0.75]
    single = shape_group(group_of(0.0, 1.0, error=None), Shaping("shrunk"))
    assert [member.reward for member in single] == [0.0, 1.0]


def test_a_group_without_a_signal_says_why() -> None:
    group = group_of(0.5, None, 0.52)
    got = shape_group(group, Shaping(min_spread=0.05))
    assert [member.reward for member in got] == [0.51, None, 0.51]
    assert got.metrics == {NEAR_TIE: True}
    assert got.logs == ["no signal: the scores differ by 0.02, less than 0.05"]
    assert (group.metrics, group.logs) == ({}, [])


def test_equal_scores_are_no_near_tie() -> None:
    assert shape_group(group_of(0.5, 0.5), Shaping(min_spread=0.05)).metrics == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_without_a_score_stays_without(kind: ShapingKind) -> None:
    assert [member.reward for member in shape_group(group_of(None, None), Shaping(kind))] == [None, None]
    assert len(shape_group(TrajectoryGroup(), Shaping(kind))) == 0
    assert shape_rewards([], [], Shaping(kind)) == []


def test_a_reward_that_is_not_finite_stays_and_spoils_no_other() -> None:
    got = [member.reward for member in shape_group(group_of(0.2, math.nan, 0.8), Shaping("centred"))]
    assert got[0] == pytest.approx(-0.3)
    assert got[1] is not None
    assert math.isnan(got[1])
    assert got[2] == pytest.approx(0.3)


async def test_what_a_judge_scored_can_be_shaped() -> None:
    group = TrajectoryGroup([desk("refund"), desk("get_order", "get_policy", "refund"), desk()])
    judged = await Judge("stand-in", rubric="- calls refund").score(group)
    rewards = [member.reward for member in shape_group(judged, Shaping("rank"))]
    assert sorted(reward for reward in rewards if reward is not None) == [0.0, 0.75, 0.75]


@pytest.mark.parametrize("values", [{"kind": "ranked"}, {"min_spread": -0.1}, {"min_spread": 1.5}])
def test_a_shaping_that_makes_no_sense_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(JudgeError, match=r"no shaping 'ranked'|from 0 to 1"):
        Shaping(**values)  # pyright: ignore[reportArgumentType]


def test_both_names_warn_and_say_what_replaces_them() -> None:
    with pytest.warns(
        DeprecationWarning, match=r"gavel.Shaping is deprecated: set TrainConfig\(advantage=…, minimal_spr"
    ):
        shaping = gavel.Shaping("rank")
    with pytest.warns(
        DeprecationWarning, match=r"gavel.shape_group is deprecated: set TrainConfig\(advantage=…"
    ) as seen:
        assert [member.reward for member in gavel.shape_group(group_of(0.2, 0.8), shaping)] == [0.0, 1.0]
    assert seen[0].filename == __file__
