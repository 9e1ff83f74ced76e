"""RULER as ART calls it."""

import pytest

from gavel.integrations.art.rewards.ruler import ruler, ruler_score_group
from gavel.integrations.art.trajectories import Trajectory, TrajectoryGroup
from gavel.judge.errors import JudgeError
from tests.endpoint import Endpoint, fails, scores

JUDGE = "openai/judge"


def a_group(*replies: str) -> TrajectoryGroup:
    question = {"role": "user", "content": "Where is it?"}
    return TrajectoryGroup(
        Trajectory(messages_and_choices=[question, {"role": "assistant", "content": reply}], reward=0.25)
        for reply in replies
    )


async def test_scores_are_rewards_and_metrics_and_the_first_reward_is_kept(endpoint: Endpoint) -> None:
    endpoint.script = [scores(0.5)]
    judged = await ruler_score_group(a_group("here", "there"), JUDGE, endpoint.params)
    assert judged is not None
    for member in judged:
        assert (member.reward, member.metrics["ruler_score"]) == (0.5, 0.5)
        assert member.metrics["independent_reward"] == 0.25
        assert any(line.startswith("RULER explanation: ") for line in member.logs)


async def test_members_that_say_the_same_are_scored_too(endpoint: Endpoint) -> None:
    endpoint.script = [scores(0.7)]
    judged = await ruler_score_group(a_group("here", "here"), JUDGE, endpoint.params)
    assert judged is not None
    assert [member.reward for member in judged] == [0.7, 0.7]


async def test_a_judge_that_fails_is_an_error_or_none(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint.script = [fails(401)]
    with pytest.raises(JudgeError):
        await ruler_score_group(a_group("here", "there"), JUDGE, endpoint.params)
    assert await ruler_score_group(a_group("here", "there"), JUDGE, endpoint.params, swallow_exceptions=True) is None
    assert "[art_ruler] Swallowed exception" in capsys.readouterr().out


async def test_a_member_without_messages_leaves_the_group_and_the_others_are_scored(endpoint: Endpoint) -> None:
    endpoint.script = [scores(0.7)]
    group = a_group("here", "there")
    group.trajectories.append(Trajectory(messages_and_choices=[], reward=0.0))
    judged = await ruler_score_group(group, JUDGE, endpoint.params)
    assert judged is not None
    assert [member.reward for member in judged] == [0.7, 0.7]
    assert "no messages" in judged.exceptions[0].message
    assert len(group) == 3
    with pytest.raises(JudgeError, match="no messages"):
        await ruler_score_group(TrajectoryGroup([Trajectory(messages_and_choices=[])]), JUDGE, endpoint.params)


async def test_lists_of_messages_get_numbered_scores(endpoint: Endpoint) -> None:
    endpoint.script = [scores(0.5)]
    lists = [member.messages() for member in a_group("here", "there")]
    got = await ruler(lists, judge_model=JUDGE, extra_litellm_params=endpoint.params)
    assert [(score.trajectory_id, score.score) for score in got] == [("1", 0.5), ("2", 0.5)]
    assert await ruler([], JUDGE) == []
