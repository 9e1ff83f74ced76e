"""Advantages against their definitions; credit for turns by the judge's states, which change nothing at lambda 1."""

import statistics
import subprocess
import sys
from random import Random
from statistics import fmean

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.engine_quality import Bias, distorted
from gavel.judge.audit.health import states_health, states_mislead
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import Judgement, Vote
from gavel.scenarios.trajectory import History, Trajectory
from gavel.trainer.config import TrainConfig
from gavel.trainer.data.advantages import advantages, credit, critic_advantages, group_advantages, score_reliability
from gavel.trainer.data.training_batch import critic_credit, make_batch
from gavel.trainer.loop.judge_alarms import WINDOW, JudgeAlarm, judge_alarms
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import Letters, attempt, sampled_turn, turns_on

rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=16)
errors = st.lists(st.none() | st.floats(0, 3), max_size=16)


@given(rewards)
def test_an_advantage_is_the_reward_minus_the_groups_mean_or_the_centred_rank_with_ties_in_the_middle(values):
    mean = sum(values) / len(values)
    assert advantages(values) == pytest.approx([value - mean for value in values], abs=1e-12)
    values = [round(value, 1) for value in values]
    expected = []
    for value in values:
        places = [place for place, other in enumerate(sorted(values)) if other == value]
        expected.append(sum(places) / len(places) / (len(values) - 1) - 0.5)
    assert advantages(values, "rank") == pytest.approx(expected, abs=1e-12)


@given(rewards, errors)
def test_the_shrunk_advantage_is_the_mean_one_times_the_share_of_true_variance(values, known):
    variance = statistics.variance(values)
    assume(variance == 0 or variance > 1e-9)
    noise = [error * error for error in known if error is not None]
    error = statistics.fmean(noise) if noise else 0.0
    factor = (max(0.0, 1 - error / variance) if variance else 0.0) if noise else 1.0
    assert score_reliability(values, known) == pytest.approx(factor, rel=1e-6, abs=1e-9)
    expected = [value * score_reliability(values, known) for value in advantages(values)]
    assert advantages(values, "shrunk", known) == pytest.approx(expected, abs=1e-12)


def test_no_model_library_is_loaded_for_it():
    program = "import sys, gavel.trainer.data.advantages; print('torch' in sys.modules, 'transformers' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=HANG_SECONDS) == "False False\n"


def test_with_labels_shrunk_advantages_are_scaled_by_how_often_the_judge_is_right_and_a_group_of_one_has_none():
    for values in ([], [1.0]):
        with pytest.raises(ValueError, match="group of one"):
            advantages(values)
    assert group_advantages([0.0, 1.0], [0.0, 0.0], kind="shrunk", p_right=0.8) == pytest.approx([-0.3, 0.3])
    assert group_advantages([0.0, 1.0], kind="mean", p_right=0.8) == [-0.5, 0.5]


NUMBER = st.floats(-1, 1)
SHARE = st.floats(0, 1)


@given(st.lists(NUMBER, max_size=6), SHARE, SHARE)
def test_credit_is_the_sum_written_out(gains, later, earlier):
    expected = [
        sum(gain * (later ** (k - t) if k >= t else earlier ** (t - k)) for k, gain in enumerate(gains))
        for t in range(len(gains))
    ]
    assert credit(gains, later, earlier) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(SHARE, st.lists(SHARE, max_size=5)), min_size=2, max_size=5))
def test_whatever_the_states_gains_sum_to_the_group_relative_advantage_and_lambda_1_pays_it_to_each_turn(group):
    scores, states = zip(*group, strict=True)
    gains, alike = critic_advantages(scores, states, 0.0), critic_advantages(scores, states, 1.0)
    for score, own, gained, paid in zip(scores, states, gains, alike, strict=True):
        assert len(gained) == len(paid) == len(own)
        assert [sum(gained)] * len(own) == pytest.approx([score - fmean(scores)] * len(own), abs=1e-9)
        assert paid == pytest.approx([score - fmean(scores)] * len(own), abs=1e-9)


def test_a_group_paid_by_hand():
    """The first member fails at its second turn, and the judge sees it; it expects .1 too much of both at first."""
    states = [[0.6, 0.0, 0.0], [0.6, 1.0, 1.0]]
    assert critic_advantages([0.0, 1.0], states, 0.0)[0] == pytest.approx([0.0, -0.5, 0.0])
    assert critic_advantages([0.0, 1.0], states, 0.5)[0] == pytest.approx([-0.25, -0.5, -0.25])


def member(states: list[float], reward: float, turns: int = 3) -> Trajectory:
    votes = [Vote(score=reward, position=0, order=0, model="m", states=states)]
    return attempt(*turns_on(turns), reward=reward, judgement=Judgement(score=reward, states=states, votes=votes))


SEEN = [member([0.5, 0.0, 0.0], 0.0), member([0.5, 1.0, 1.0], 1.0)]


@pytest.mark.parametrize(
    ("members", "used", "paid"),
    [
        (SEEN, 0.0, [0, 0, -0.5, -0.5, 0, 0, 0, 0, 0.5, 0.5, 0, 0]),
        ([member([0.5, 1.0, 0.0], 0.0), member([0.5, 0.0, 1.0], 1.0)], 1.0, [-0.5] * 6 + [0.5] * 6),
    ],
)
def test_all_tokens_of_a_turn_share_its_advantage_and_states_that_mislead_are_not_used(members, used, paid):
    batch = make_batch([TrajectoryGroup(members)], TrainConfig(advantage="critic", gae_lambda=0.0), Letters())
    assert [value for each in batch.sequences for value in each.advantages] == pytest.approx(paid)
    assert batch.critic == {"critic/lambda": used, "critic/stateless": 0.0}


def test_members_without_states_and_further_conversations_have_one_advantage_and_examples_take_no_credit():
    without = [member([], 0.0), member([0.5, 0.5], 0.0)]  # none, and too few
    own = member([0.9, 0.5, 0.0, 0.0], 0.0)
    own.messages_and_choices.insert(0, {"role": "assistant", "content": "an example"})
    own.additional_histories = [History(messages_and_choices=[sampled_turn([7], [7])])]
    batch = make_batch([TrajectoryGroup([own, SEEN[1], *without])], TrainConfig(advantage="critic"), Letters())
    assert batch.critic["critic/stateless"] == 0.5
    assert [each.advantages for each in batch.sequences[3:]] == [[], []]
    assert batch.sequences[1].advantages == pytest.approx([-0.25])
    assert critic_credit([own, SEEN[1]], 0.0)[0] == pytest.approx({0: 0.0, 1: -0.5, 2: 0.0})


def simulated(bias: Bias, groups: int = 40) -> list[TrajectoryGroup]:
    """One of two turns decides each attempt."""
    random = Random("health")
    found: list[TrajectoryGroup] = []
    for _ in range(groups):
        scores = {str(n): float(random.random() < 0.5) for n in range(8)}
        true = {name: [score if random.random() < 0.5 else 0.5] * 1 for name, score in scores.items()}
        states = distorted(true, scores, bias, random)
        found.append(TrajectoryGroup([member(states[name], score, turns=2) for name, score in scores.items()]))
    return found


@pytest.mark.parametrize(
    ("bias", "misleads"),
    [
        (Bias(), False),
        (Bias(state_bias=0.2), False),
        (Bias(state_leak=0.5), False),
        (Bias(state_correlation=0.9), False),
        (Bias(state_correlation=0.3), True),
        (Bias(state_correlation=0.0), True),
    ],
)
def test_states_that_do_not_predict_the_scores_raise_an_alarm(bias, misleads):
    figures = states_health(simulated(bias))
    assert states_mislead(figures) is misleads
    alarms = judge_alarms([{"judge_score": 0.5, **figures}] * WINDOW)
    assert (JudgeAlarm.STATES in alarms) is misleads


def test_the_alarm_goes_by_the_mean_of_a_window_and_states_that_never_fall_mislead_and_no_states_do_not():
    measured = [(-0.049, 0.181), (0.145, 0.381), (-0.035, 0.123), (0.292, 0.569), (0.065, 0.276)]  # of correlation .3
    rows = [{"judge_score": 0.45, "health/states_explained": e, "health/states_correlation": r} for e, r in measured]
    assert not all(map(states_mislead, rows))
    assert JudgeAlarm.STATES in judge_alarms(rows)
    constant = [TrajectoryGroup([member([0.5, 0.5, score], score) for score in (0.0, 0.4, 1.0)])]
    assert states_mislead(states_health(constant))
    none = [TrajectoryGroup([member([], score) for score in (0.0, 1.0)])]
    assert states_health(none) == {}
    assert not states_mislead({})
    assert JudgeAlarm.STATES not in judge_alarms([{"judge_score": 0.5}] * WINDOW)
