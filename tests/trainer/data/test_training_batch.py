"""From judged groups to the sequences of a step: what is trained with which advantage, and what is left out and why."""

import math
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, Judgement
from gavel.scenarios.trajectory import History, Trajectory
from gavel.trainer.config import TrainConfig
from gavel.trainer.data import training_batch as room
from gavel.trainer.data.left_out import LeftOut
from gavel.trainer.data.token_sequences import TokenError, sequences
from gavel.trainer.data.training_batch import (
    Batch,
    has_signal,
    mini_batches,
    mismatches,
    step_advantages,
    token_advantages,
    token_rewards,
)
from tests.trainer.conftest import Letters, attempt, sampled_turn, spelled, turns_on

CONFIG = TrainConfig()


def make_batch(groups: list[TrajectoryGroup], config: TrainConfig = CONFIG) -> Batch:
    return room.make_batch(groups, config, Letters())


def advantages(groups: list[TrajectoryGroup], **settings: Any) -> list[float]:
    return [each.advantage for each in make_batch(groups, TrainConfig(**settings)).sequences]


def member(reward: float | None, tokens: int = 2) -> Trajectory:
    return attempt(sampled_turn([1, 2], list(range(3, 3 + tokens))), reward=reward)


def group(*rewards: float | None, **fields) -> TrajectoryGroup:
    return TrajectoryGroup((member(reward) for reward in rewards), **fields)


def test_members_are_trained_with_the_advantage_over_their_own_group():
    batch = make_batch([group(0.0, 1.0), group(0.5, 0.6, 1.0)])
    assert [s.advantage for s in batch.sequences] == pytest.approx([-0.5, 0.5, -0.2, -0.1, 0.3])
    assert (batch.groups, batch.trajectories, batch.trained_tokens) == (2, 5, 10)
    assert not batch.left_out_groups
    assert not batch.left_out_members


@given(st.lists(st.lists(st.none() | st.floats(0, 1), min_size=2, max_size=5), min_size=1, max_size=4))
def test_advantages_are_divided_by_their_root_mean_square_over_all_groups(rewards):
    groups = [group(*row) for row in rewards]
    plain = advantages(groups)
    scale = math.sqrt(sum(value**2 for value in plain) / max(1, len(plain)))
    assert advantages(groups, normalize_over_batch=True) == pytest.approx([value / scale for value in plain])


def test_a_member_that_ran_out_counts_in_the_mean_and_is_not_trained_when_asked_for():
    by_its_turn = attempt(sampled_turn([1, 2], [3, 4], finish_reason="length"), reward=1.0)
    cut = attempt(sampled_turn([1, 2], [3, 4]), reward=0.5, status="truncated")
    groups = [TrajectoryGroup([member(0.0), cut, by_its_turn])]
    assert advantages(groups) == pytest.approx([-0.5, 0.0, 0.5])
    batch = make_batch(groups, TrainConfig(mask_truncated=True))
    assert [each.advantage for each in batch.sequences] == pytest.approx([-0.5])
    assert batch.left_out_members == {LeftOut.RAN_OUT: 2}


def judged(*scores: tuple[float, float | None]) -> TrajectoryGroup:
    """Members by score and its standard error."""
    judgements = [Judgement(score=score, standard_error=error) for score, error in scores]
    return TrajectoryGroup(member(each.score).model_copy(update={"judgement": each}) for each in judgements)


@pytest.mark.parametrize(
    ("left_out", "settings", "reason"),
    [
        (group(), {}, LeftOut.ONE_MEMBER),
        (group(0.7, None), {}, LeftOut.ONE_MEMBER),
        (group(None, None), {}, LeftOut.NO_TRAINABLE_MEMBER),
        (group(0.1 + 0.2, 0.3), {}, LeftOut.NO_SIGNAL),
        (group(0.0, 0.0, math.nan), {}, LeftOut.NO_SIGNAL),
        (group(0.5, 0.52, 0.51), {"minimal_spread": 0.05, "advantage": "rank"}, LeftOut.NEAR_TIE),
        (judged((0.4, 0.3), (0.6, 0.3)), {"advantage": "shrunk"}, LeftOut.UNRELIABLE_SCORES),
        (group(0.1, 0.9, judgement=GroupJudgement(status="degenerate")), {}, LeftOut.IDENTICAL_MEMBERS),
    ],
)
def test_a_group_without_a_signal_is_left_out_and_counted(left_out, settings, reason):
    batch = make_batch([left_out, judged((0.0, 0.0), (1.0, 0.0))], TrainConfig(**settings))
    assert (batch.groups, batch.trajectories, batch.left_out_groups) == (1, 2, {reason: 1})


@pytest.mark.parametrize(("advantage", "shrunk"), [("mean", 1), ("shrunk", 0.96)])
def test_scores_of_an_unsure_judge_are_shrunk_when_asked_for(advantage, shrunk):
    found = advantages([judged((0.0, 0.1), (0.5, None), (1.0, 0.1))], advantage=advantage)
    assert found == pytest.approx([-0.5 * shrunk, 0, 0.5 * shrunk])


@given(st.lists(st.integers(0, 6), min_size=1, max_size=20), st.integers(1, 9), st.text(max_size=3))
def test_mini_batches_are_whole_groups_and_hold_every_sequence_once(groups, count, seed):
    parts = mini_batches(groups, count, seed)
    assert sorted(at for part in parts for at in part) == list(range(len(groups)))
    held = [{groups[at] for at in part} for part in parts]
    assert sum(len(part) for part in held) == len(set(groups))
    assert len(parts) == min(count, len(set(groups)))
    assert max(map(len, held)) - min(map(len, held)) <= 1
    assert parts == mini_batches(groups, count, seed)


def two_turns(first: str, said: str, second: str, finish_reason: str = "stop", **extra: object) -> Trajectory:
    sampled = sampled_turn(spelled(first), spelled(said), finish_reason=finish_reason)
    return attempt(sampled, sampled_turn(spelled(second), spelled("z"), **extra), reward=1.0)


def test_a_member_whose_sampled_text_was_changed_is_left_out_and_counted_unless_it_is_asked_for(caplog):
    edited = two_turns("user", "reply", "userrejoinder")
    groups = [TrajectoryGroup([edited, member(0.0), member(0.5)])]
    refused = make_batch(groups)
    assert [s.advantage for s in refused.sequences] == pytest.approx([-0.5, 0.0])
    assert refused.left_out_members == {LeftOut("client_edit"): 1}
    assert "on_token_mismatch" in caplog.text
    branched = make_batch(groups, TrainConfig(on_token_mismatch="branch"))
    assert [s.advantage for s in branched.sequences] == pytest.approx([0.5, 0.5, -0.5, 0.0])
    assert refused.token_mismatches == branched.token_mismatches == {"client_edit": 1}
    assert not branched.left_out_members


LONGEST = Letters().max_context
SHAPED = attempt(sampled_turn([1], [2]), sampled_turn([1, 2, 4], [5], shaped_by=["top_p"]), reward=1.0)


@pytest.mark.parametrize(
    ("unfit", "reason", "told"),
    [
        (member(None), LeftOut.UNSCORED, ""),
        (member(math.nan), LeftOut.REWARD_NOT_FINITE, ""),
        (member(-math.inf), LeftOut.REWARD_NOT_FINITE, ""),
        *(
            (attempt(sampled_turn([1], [2, 3], [-0.5, logprob]), reward=1.0), LeftOut.INVALID_LOGPROBS, "")
            for logprob in (math.nan, math.inf, -math.inf, 1.0)
        ),
        (SHAPED, LeftOut.SHAPED_SAMPLING, "Leave top_p"),
        (attempt(sampled_turn([1] * LONGEST, [2]), reward=1.0), LeftOut.TOO_LONG, ""),
        (attempt(sampled_turn([1] * (LONGEST - 1), [2]), reward=1.0), None, ""),
    ],
)
def test_a_member_that_cannot_be_trained_is_counted_and_one_without_a_score_is_not_a_zero(unfit, reason, told, caplog):
    batch = make_batch([TrajectoryGroup([unfit, member(0.0), member(0.5)])])
    mean = 0.5 if unfit.reward == 1.0 else 0.25
    assert [s.advantage for s in batch.sequences][-2:] == pytest.approx([-mean, 0.5 - mean])
    assert (batch.trajectories, batch.left_out_members) == ((2, {reason: 1}) if reason else (3, {}))
    assert told in caplog.text


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        *((sampled_turn([prompt], [said]), "base model has 27 tokens") for prompt, said in ((1, 27), (99, 2), (1, -1))),
        *(
            (sampled_turn([1], [2, 3], token_advantages=given), "token_advantages")
            for given in ([1.0], [1.0, math.nan])
        ),
    ],
)
def test_tokens_that_the_base_model_does_not_have_and_advantages_that_do_not_fit_are_told(turn, told):
    with pytest.raises(TokenError, match=told):
        make_batch([TrajectoryGroup([attempt(turn, reward=1.0), member(0.0)])])


decode = Letters().decode


@pytest.mark.parametrize(
    ("trajectory", "kind"),
    [
        (two_turns("systemuser", "thoughtreply", "systemuserreplynext", continues_sampled=True), "template"),
        (attempt(sampled_turn([0, 1], [2]), sampled_turn([26, 2, 3], [4])), "retokenisation"),
        (attempt(sampled_turn([2], [0, 1]), sampled_turn([2, 26, 3], [4], continues_sampled=True)), "retokenisation"),
        (two_turns("systemuser", "reply", "userreplynext"), "truncation"),  # the beginning is gone
        (two_turns("systemoneuser", "reply", "systemuserreplynext"), "truncation"),  # a stretch in the middle is
        (two_turns("systemuser", "repl", "systemuserrefused", "length"), "truncation"),
        (two_turns("systemuser", "reply", "systemquestionreplynext"), "client_edit"),  # the user's message is another
        (two_turns("systemuser", "reply", "systemusernext"), "client_edit"),
    ],
)
def test_a_turn_that_does_not_go_on_is_told_by_its_cause(trajectory, kind):
    assert mismatches(trajectory, decode) == {kind: 1}
    assert mismatches(Trajectory.from_json(trajectory.to_json()), decode) == {kind: 1}


def test_a_turn_may_be_sampled_again_and_any_of_the_samples_gone_on_from():
    again = [sampled_turn([1], [2]), sampled_turn([1], [3]), sampled_turn([1], [4])]
    for chosen in (2, 3, 4):
        assert not mismatches(attempt(*again, sampled_turn([1, chosen, 5], [6])), decode)


PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()


def test_the_page_lists_every_reason_and_no_other():
    listed = PAGE.partition("### Reasons")[2].partition("## ")[0]
    assert re.findall(r"`(\w+)`", listed) == [reason.value for reason in LeftOut]


def test_a_turns_reward_comes_with_its_last_token_and_the_trajectorys_with_the_end_of_every_sequence():
    first, second = sampled_turn([1, 2], [3, 4]), sampled_turn([1, 2, 3, 4, 9, 9], [5, 6, 7])
    aside = sampled_turn([8], [2, 2])
    trajectory = attempt(first, second, reward=10.0, step_rewards=[0.1, 0.2, 7.0, 0.4])
    trajectory.additional_histories = [History(messages_and_choices=[first, aside])]
    main, other = sequences(trajectory)
    assert token_rewards(trajectory, main) == pytest.approx([0, 0.1, 0, 0, 10.2])
    assert token_rewards(trajectory, other) == pytest.approx([0, 10.4])
    assert token_rewards(attempt(first, reward=1.0), main) == [0, 0, 0, 0, 1]


steps = st.lists(st.floats(-2, 2), min_size=1, max_size=4)


@given(st.lists(steps, min_size=2, max_size=4), st.booleans())
def test_a_token_gets_the_advantages_of_its_own_turn_and_of_later_ones(rewards, divide):
    """DeepSeekMath's process supervision written out."""
    everything = [reward for member in rewards for reward in member]
    mean, spread = fmean(everything), stdev(everything) + 1e-4 if divide else 1.0
    members = [attempt(*turns_on(len(own)), reward=float(at), step_rewards=own) for at, own in enumerate(rewards)]
    found = step_advantages(members, divide=divide)
    for member, own, steps in zip(members, rewards, found, strict=True):
        (tokens,) = sequences(member)
        later = [sum((reward - mean) / spread for reward in own[turn:]) for turn in range(len(own))]
        expected = [0.25 + value for value in later for _ in range(2)]
        assert token_advantages(member, tokens, 0.25, steps, {}) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_equal_trajectories_with_other_turns_are_trained_and_members_with_too_few_rewards_are_counted():
    def member(*rewards: float):
        return attempt(sampled_turn([1], [2]), sampled_turn([1, 2, 3], [4]), reward=0.5, step_rewards=[*rewards])

    group = TrajectoryGroup([member(1.0, 0.0), member(0.0, 0.0), member(1.0)])
    batch = make_batch([group], TrainConfig(step_advantages=True))
    assert [each.advantages for each in batch.sequences] == [[0.5, -0.25], [-0.5, -0.25]]
    assert batch.left_out_members == {LeftOut.STEP_REWARDS_MISMATCH: 1}
    assert has_signal(group, TrainConfig(step_advantages=True))
    unlike = TrajectoryGroup([member(1.0, 0.0), attempt(sampled_turn([1], [2]), reward=0.0)])
    with pytest.warns(UserWarning, match="step_advantages=True or loss=Ppo"):
        plain = make_batch([unlike])
    assert all(not each.advantages for each in plain.sequences)
    assert not has_signal(group, TrainConfig())


def test_advantages_that_turns_carry_are_those_of_their_tokens_and_a_signal_where_the_rewards_are_none():
    def group(*values: float) -> TrajectoryGroup:
        return TrajectoryGroup(attempt(sampled_turn([1], [3], token_advantages=[each]), reward=0.5) for each in values)

    first = sampled_turn([1, 2], [3, 4], token_advantages=[0.5, -0.25])
    second = sampled_turn([1, 2, 3, 4, 9], [5], token_advantages=[2.0])
    given, other = make_batch([TrajectoryGroup([attempt(first, second, reward=1.0), member(0.0)])]).sequences
    assert given.advantages == [0.5, -0.25, 2.0]
    assert (list(other.advantages), other.advantage) == ([], -0.5)  # the other member's reward counts in its mean
    assert has_signal(group(1.0, 0.0), CONFIG)
    assert not has_signal(group(0.0, 0.0), CONFIG)
    (alone,) = make_batch([group(3.0)]).sequences
    assert alone.advantages == [3.0]
