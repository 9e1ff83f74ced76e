from gavel.scenarios.group import TrajectoryGroup, unscored, with_judgements
from gavel.scenarios.judgement import GroupJudgement, Judgement
from gavel.scenarios.trajectory import Trajectory


def test_a_score_becomes_the_reward_and_the_reward_before_it_a_metric():
    group = TrajectoryGroup([Trajectory(reward=0.25), Trajectory()])
    members = [Judgement(score=0.75), Judgement(reason="no vote")]
    judged = with_judgements(group, members, GroupJudgement(status="partial"))
    assert [trajectory.reward for trajectory in judged] == [0.75, None]
    assert [trajectory.metrics for trajectory in judged] == [{"independent_reward": 0.25}, {}]
    assert [trajectory.reward for trajectory in group] == [0.25, None]


def test_an_unscored_copy_has_no_rewards_and_one_reason():
    judged = unscored(TrajectoryGroup([Trajectory(reward=0.25), Trajectory(reward=1.0)]), "the judge is out")
    assert [trajectory.reward for trajectory in judged] == [None, None]
    assert judged.judgement == GroupJudgement(status="unscored", reason="the judge is out")
    assert [t.judgement and t.judgement.reason for t in judged] == ["the judge is out"] * 2
