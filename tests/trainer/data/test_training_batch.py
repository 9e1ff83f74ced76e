"""Which members are trained, and what is said of the rest."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.scenarios.gather import gather_trajectory_groups
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, Judgement
from gavel.scenarios.trajectory import History, Trajectory
from gavel.trainer.config import TrainConfig
from gavel.trainer.data import training_batch as room
from gavel.trainer.data.left_out import LeftOut
from gavel.trainer.data.token_sequences import TokenError
from gavel.trainer.data.training_batch import Batch, mini_batches
from tests.trainer.conftest import Letters, attempt, sampled_turn, spelled

CONFIG = TrainConfig()


def make_batch(groups: list[TrajectoryGroup], config: TrainConfig) -> Batch:
    return room.make_batch(groups, config, Letters())


def member(reward: float | None, tokens: int = 2) -> Trajectory:
    return attempt(sampled_turn([1, 2], list(range(3, 3 + tokens))), reward=reward)


def group(*rewards: float | None, **fields) -> TrajectoryGroup:
    return TrajectoryGroup((member(reward) for reward in rewards), **fields)


def test_members_are_trained_with_the_advantage_over_their_own_group():
    batch = make_batch([group(0.0, 1.0), group(0.5, 0.6, 1.0)], CONFIG)
    assert [s.advantage for s in batch.sequences] == pytest.approx([-0.5, 0.5, -0.2, -0.1, 0.3])
    assert (batch.groups, batch.trajectories, batch.trained_tokens) == (2, 5, 10)
    assert not batch.left_out_groups
    assert not batch.left_out_members


@given(st.lists(st.lists(st.none() | st.floats(0, 1), min_size=2, max_size=5), min_size=1, max_size=4))
def test_advantages_are_divided_by_their_root_mean_square_over_all_groups(rewards):
    groups = [group(*row) for row in rewards]
    plain = [each.advantage for each in make_batch(groups, CONFIG).sequences]
    scaled = make_batch(groups, TrainConfig(normalize_over_batch=True))
    scale = math.sqrt(sum(value**2 for value in plain) / max(1, len(plain)))
    assert [each.advantage for each in scaled.sequences] == pytest.approx([value / scale for value in plain])


def test_a_member_that_ran_out_counts_in_the_mean_and_is_not_trained_when_asked_for():
    ended, cut, by_its_turn = (
        member(0.0),
        member(0.5),
        attempt(sampled_turn([1, 2], [3, 4], finish_reason="length"), reward=1.0),
    )
    cut.status = "truncated"
    groups = [TrajectoryGroup([ended, cut, by_its_turn])]
    assert [each.advantage for each in make_batch(groups, CONFIG).sequences] == pytest.approx([-0.5, 0.0, 0.5])
    batch = make_batch(groups, TrainConfig(mask_truncated=True))
    assert [each.advantage for each in batch.sequences] == pytest.approx([-0.5])
    assert batch.left_out_members == {LeftOut.RAN_OUT: 2}


def test_a_member_without_a_score_is_left_out_and_is_not_a_zero():
    batch = make_batch([group(0.2, None, 0.4)], CONFIG)
    assert [s.advantage for s in batch.sequences] == pytest.approx([-0.1, 0.1])
    assert batch.left_out_members == {LeftOut.UNSCORED: 1}


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_left_out(reward):
    batch = make_batch([group(0.2, reward, 0.4)], CONFIG)
    assert [s.advantage for s in batch.sequences] == pytest.approx([-0.1, 0.1])
    assert batch.left_out_members == {LeftOut.REWARD_NOT_FINITE: 1}


def test_a_group_without_a_finite_reward_is_counted_with_what_its_members_lack():
    batch = make_batch([group(math.nan, math.inf, None)], CONFIG)
    assert batch.left_out_groups == {LeftOut.NO_TRAINABLE_MEMBER: 1}
    assert batch.left_out_members == {LeftOut.REWARD_NOT_FINITE: 2, LeftOut.UNSCORED: 1}


@pytest.mark.parametrize(
    ("left_out", "reason"),
    [
        (group(0.7), LeftOut.ONE_MEMBER),
        (group(), LeftOut.ONE_MEMBER),
        (group(0.7, None), LeftOut.ONE_MEMBER),
        (group(0.3, 0.3, 0.3), LeftOut.NO_SIGNAL),
        (group(0.1 + 0.2, 0.3), LeftOut.NO_SIGNAL),
        (group(0.0, 0.0, math.nan), LeftOut.NO_SIGNAL),
        (group(0.1, 0.9, judgement=GroupJudgement(status="degenerate")), LeftOut.IDENTICAL_MEMBERS),
    ],
)
def test_a_group_without_a_signal_is_left_out_and_counted(left_out, reason):
    batch = make_batch([left_out, group(0.0, 1.0)], CONFIG)
    assert batch.left_out_groups == {reason: 1}
    assert (batch.groups, batch.trajectories) == (1, 2)


def test_the_least_spread_can_be_set():
    assert make_batch([group(0.5, 0.54)], TrainConfig(minimal_spread=0.05)).left_out_groups == {LeftOut.NEAR_TIE: 1}
    assert make_batch([group(0.5, 0.54)], CONFIG).groups == 1


def test_a_group_without_a_signal_is_never_looked_into_for_tokens():
    foreign = Trajectory(messages_and_choices=[sampled_turn([1], [2])], reward=0.5)
    foreign.choices().__next__().logprobs = None
    assert make_batch([TrajectoryGroup([foreign, foreign])], CONFIG).left_out_groups == {LeftOut.NO_SIGNAL: 1}
    with pytest.raises(TokenError):
        make_batch([TrajectoryGroup([foreign, member(0.9)])], CONFIG)


def test_a_scored_member_that_sampled_nothing_counts_in_the_mean_but_is_not_trained():
    silent = Trajectory(messages_and_choices=[{"role": "user", "content": "task"}], reward=0.0)
    batch = make_batch([TrajectoryGroup([silent, member(0.5), member(1.0)])], CONFIG)
    assert [s.advantage for s in batch.sequences] == pytest.approx([0.0, 0.5])
    assert batch.left_out_members == {LeftOut.NOTHING_SAMPLED: 1}


async def test_rewards_of_rollouts_are_not_trained_when_the_judge_raises():
    async def rollout(reward: float) -> Trajectory:
        return member(reward)

    async def judge(group: TrajectoryGroup) -> TrajectoryGroup:
        raise RuntimeError("the judge is out")

    pending = TrajectoryGroup(rollout(number / 4) for number in range(4))
    judged = await gather_trajectory_groups([pending], after_each=judge, max_exceptions=1)
    batch = make_batch(judged, CONFIG)
    assert (batch.trajectories, batch.left_out_groups) == (0, {LeftOut.NO_TRAINABLE_MEMBER: 1})
    assert batch.left_out_members == {LeftOut.UNSCORED: 4}


def test_the_sequences_of_one_trajectory_share_its_advantage():
    forked = attempt(sampled_turn([1], [2]), reward=1.0)
    forked.additional_histories = [History(messages_and_choices=[sampled_turn([9], [3])])]
    batch = make_batch([TrajectoryGroup([forked, member(0.0)])], CONFIG)
    assert [s.advantage for s in batch.sequences] == [0.5, 0.5, -0.5]
    assert batch.trajectories == 2


def test_an_empty_batch_says_why_in_one_sentence():
    batch = make_batch([group(0.3, 0.3), group(0.3, 0.3), group(None, 0.1)], CONFIG)
    assert not batch.sequences
    assert "2 groups whose members all have the same score" in batch.why_empty()
    assert make_batch([], CONFIG).why_empty() == "nothing was trained: nothing was given"


@given(st.lists(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 9)), max_size=5), max_size=4))
def test_however_the_groups_look_all_of_them_are_accounted_for(groups):
    batch = make_batch([TrajectoryGroup(member(*pair) for pair in pairs) for pairs in groups], CONFIG)
    assert batch.groups + batch.left_out_groups.total() == len(groups)
    assert {sequence.group for sequence in batch.sequences} == set(range(batch.groups))


def test_scores_that_differ_by_less_than_the_minimal_spread_are_left_out_for_that_reason():
    groups = [group(0.5, 0.52), group(0.5, 0.5), group(0.5, 0.6)]
    batch = make_batch(groups, TrainConfig(advantage="rank", minimal_spread=0.05))
    assert batch.left_out_groups == {LeftOut.NEAR_TIE: 1, LeftOut.NO_SIGNAL: 1}
    assert [sequence.advantage for sequence in batch.sequences] == [-0.5, 0.5]


def judged(*scores: tuple[float, float | None]) -> TrajectoryGroup:
    """Members by score and its standard error."""
    made = [member(score) for score, _ in scores]
    for each, (score, error) in zip(made, scores, strict=True):
        each.judgement = Judgement(score=score, standard_error=error)
    return TrajectoryGroup(made)


def test_scores_of_an_unsure_judge_are_shrunk_when_asked_for():
    group = judged((0.0, 0.1), (0.5, None), (1.0, 0.1))
    assert [s.advantage for s in make_batch([group], CONFIG).sequences] == pytest.approx([-0.5, 0, 0.5])
    shrunk = make_batch([group], TrainConfig(advantage="shrunk"))
    assert [s.advantage for s in shrunk.sequences] == pytest.approx([-0.48, 0, 0.48])


def test_a_group_in_which_the_judge_was_only_guessing_is_left_out():
    batch = make_batch([judged((0.4, 0.3), (0.6, 0.3))], TrainConfig(advantage="shrunk"))
    assert batch.left_out_groups == {LeftOut.UNRELIABLE_SCORES: 1}
    assert not batch.sequences


def test_a_tie_by_rank_is_a_group_of_equal_scores_however_small_a_spread_is_asked_for():
    batch = make_batch([group(0.3, 0.3 + 1e-9)], TrainConfig(advantage="rank", minimal_spread=0))
    assert batch.left_out_groups == {LeftOut.NO_SIGNAL: 1}


@given(st.lists(st.integers(0, 6), min_size=1, max_size=20), st.integers(1, 9), st.text(max_size=3))
def test_mini_batches_are_whole_groups_and_hold_every_sequence_once(groups, count, seed):
    parts = mini_batches(groups, count, seed)
    assert sorted(at for part in parts for at in part) == list(range(len(groups)))
    held = [{groups[at] for at in part} for part in parts]
    assert sum(len(part) for part in held) == len(set(groups))
    assert len(parts) == min(count, len(set(groups)))
    assert max(map(len, held)) - min(map(len, held)) <= 1
    assert parts == mini_batches(groups, count, seed)


def test_mini_batches_are_drawn_anew_for_every_seed():
    assert len({str(mini_batches(range(8), 2, str(seed))) for seed in range(20)}) > 10


def test_a_single_mini_batch_keeps_the_order_of_the_batch():
    assert mini_batches([1, 0, 1, 0], 1, "any") == [[0, 1, 2, 3]]


def two_turns(first: str, said: str, second: str, **extra: object) -> Trajectory:
    return attempt(
        sampled_turn(spelled(first), spelled(said)), sampled_turn(spelled(second), spelled("z"), **extra), reward=1.0
    )


EDITED = two_turns("user", "reply", "userrejoinder")


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        (attempt(sampled_turn([0, 1], [2]), sampled_turn([26, 2, 3], [4]), reward=1.0), "retokenisation"),
        (two_turns("longtask", "reply", "taskreplynext"), "truncation"),
        (EDITED, "client_edit"),
    ],
)
def test_a_member_whose_sampled_text_was_changed_is_left_out_and_counted_unless_it_is_asked_for(changed, kind, caplog):
    groups = [TrajectoryGroup([changed, member(0.0), member(0.5)])]
    refused = make_batch(groups, CONFIG)
    assert [s.advantage for s in refused.sequences] == pytest.approx([-0.5, 0.0])
    assert refused.left_out_members == {LeftOut(kind): 1}
    assert refused.token_mismatches == {kind: 1}
    assert "1 members are left out for their tokens" in caplog.text
    assert "on_token_mismatch" in caplog.text
    branched = make_batch(groups, TrainConfig(on_token_mismatch="branch"))
    assert [s.advantage for s in branched.sequences] == pytest.approx([0.5, 0.5, -0.5, 0.0])
    assert branched.token_mismatches == {kind: 1}
    assert not branched.left_out_members


def test_what_the_template_shows_otherwise_is_trained_as_branches(caplog):
    rewritten = two_turns("user", "thoughtreply", "userreplynext", continues_sampled=True)
    batch = make_batch([TrajectoryGroup([rewritten, member(0.0)])], CONFIG)
    assert [s.advantage for s in batch.sequences] == [0.5, 0.5, -0.5]
    assert batch.token_mismatches == {"template": 1}
    assert not batch.left_out_members
    assert not caplog.records


def test_a_group_of_which_nothing_can_be_trained_is_left_out_and_the_batch_says_why():
    batch = make_batch([TrajectoryGroup([EDITED, EDITED.model_copy(update={"reward": 0.0})])], CONFIG)
    assert (batch.groups, batch.trajectories, batch.unique_tokens) == (0, 0, 0)
    assert batch.left_out_groups == {LeftOut.NO_TRAINABLE_MEMBER: 1}
    assert f"2 {LeftOut.CLIENT_EDIT.sentence}" in batch.why_empty()


def test_a_member_with_a_turn_of_another_distribution_is_left_out_and_it_is_said_how_to_keep_it(caplog):
    shaped = attempt(sampled_turn([1], [2, 3]), sampled_turn([1, 2, 3, 4], [5], shaped_by=["top_p"]), reward=1.0)
    batch = make_batch([TrajectoryGroup([shaped, member(0.0), member(0.5)])], CONFIG)
    assert batch.trajectories == 2
    assert batch.left_out_members == {LeftOut.SHAPED_SAMPLING: 1}
    assert "1 members are left out for how they were sampled. Leave top_p" in caplog.text


@pytest.mark.parametrize("logprob", [math.nan, math.inf, -math.inf, 1.0])
def test_a_member_with_a_logprob_that_is_none_is_left_out(logprob):
    doubtful = attempt(sampled_turn([1], [2, 3], [-0.5, logprob]), reward=1.0)
    batch = make_batch([TrajectoryGroup([doubtful, member(0.0), member(0.5)])], CONFIG)
    assert [s.advantage for s in batch.sequences] == pytest.approx([-0.5, 0.0])
    assert batch.left_out_members == {LeftOut.INVALID_LOGPROBS: 1}


def test_a_sure_tokens_logprob_may_be_rounded_above_zero():
    sure = attempt(sampled_turn([1], [2], [1e-6]), reward=1.0)
    assert make_batch([TrajectoryGroup([sure, member(0.0)])], CONFIG).trajectories == 2


def test_a_member_longer_than_the_context_is_left_out():
    longest = Letters().max_context
    groups = [
        TrajectoryGroup([member(0.0, 2), *(attempt(sampled_turn([1] * n, [2]), reward=1.0) for n in (longest, 3))])
    ]
    batch = make_batch(groups, CONFIG)
    assert batch.left_out_members == {LeftOut.TOO_LONG: 1}
    assert batch.trajectories == 2
    groups[0].trajectories[1] = attempt(sampled_turn([1] * (longest - 1), [2]), reward=1.0)
    assert make_batch(groups, CONFIG).trajectories == 3


@pytest.mark.parametrize("turn", [sampled_turn([1], [27]), sampled_turn([99], [2]), sampled_turn([1], [-1])])
def test_a_token_that_the_base_model_does_not_have_is_an_error_that_names_both(turn):
    with pytest.raises(TokenError, match="the base model has 27 tokens") as error:
        make_batch([TrajectoryGroup([attempt(turn, reward=1.0), member(0.0)])], CONFIG)
    assert "tokenizer" in error.value.remedy


def test_tokens_that_spell_nothing_are_refused_before_anybody_spells_them(monkeypatch):
    monkeypatch.setattr(Letters, "decode", lambda *_: pytest.fail("spelled"))
    torn = attempt(sampled_turn([1], [-1]), sampled_turn([2], [3]), reward=1.0)
    with pytest.raises(TokenError, match="the token -1"):
        make_batch([TrajectoryGroup([torn, member(0.0)])], CONFIG)


def test_the_tokens_that_sequences_share_are_counted_once():
    batch = make_batch([group(0.0, 0.5, 1.0), TrajectoryGroup([member(0.0, 3), member(1.0, 4)])], CONFIG)
    assert batch.trained_tokens == 13
    assert batch.unique_tokens == 6
