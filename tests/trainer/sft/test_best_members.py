"""Who is imitated: the best of each group, above a score, and never who has none."""

import math
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.loop.imitation import best_members


def member(reward: float | None, status: Literal["finished", "truncated", "failed"] = "finished") -> Trajectory:
    return Trajectory(messages_and_choices=[{"role": "user", "content": "?"}], reward=reward, status=status)


def group(*rewards: float | None) -> TrajectoryGroup:
    return TrajectoryGroup([member(reward) for reward in rewards])


scores = st.none() | st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])


@given(st.lists(st.lists(scores, max_size=6), max_size=5), st.integers(1, 4), scores)
def test_everyone_is_chosen_or_counted_and_nobody_left_behind_scored_higher(
    rewards: list[list[float | None]], best: int, above: float | None
) -> None:
    groups = [group(*row) for row in rewards]
    chosen = best_members(groups, best, above)
    expected: list[Trajectory] = []
    for each in groups:
        places = [at for at, one in enumerate(each) if one.reward is not None]
        places.sort(key=lambda at: (-(each.trajectories[at].reward or 0.0), at))
        members = [each.trajectories[at] for at in places[:best]]
        expected += [one for one in members if (one.reward or 0.0) > (-math.inf if above is None else above)]
    assert [id(one) for one in chosen.trajectories] == [id(one) for one in expected]
    assert chosen.scored + chosen.unscored == sum(map(len, rewards))
    assert chosen.scored == len(chosen.trajectories) + chosen.too_low + chosen.not_best


@pytest.mark.parametrize(
    ("rewards", "best", "above", "groups", "alike"),
    [
        ([[0.5, 0.5], [0.5, 0.5, None]], 1, None, 2, 2),
        ([[0.5, 0.5], [0.5, 0.4]], 1, None, 2, 1),
        ([[0.5, 0.5, 0.4]], 1, None, 1, 0),
        ([[0.5, 0.5], [0.5, 0.5, 0.5]], 2, None, 2, 1),
        ([[0.5], [0.5, None], [None, None]], 1, None, 2, 0),
        ([[0.5, 0.5], [0.9, 0.9]], 1, 0.7, 1, 1),
    ],
)
def test_groups_without_a_best_member_are_counted_where_one_had_to_be_chosen(
    rewards: list[list[float | None]], best: int, above: float | None, groups: int, alike: int
) -> None:
    chosen = best_members([group(*row) for row in rewards], best, above)
    assert (chosen.groups, chosen.alike) == (groups, alike)
