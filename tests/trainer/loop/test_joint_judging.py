"""All models' attempts at a task are one group, and what was judged is not judged again."""

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.loop.joint_judging import joint_groups
from tests.judge.groups import choice


def episode(text: str, *agents: str | None) -> TrajectoryGroup:
    return TrajectoryGroup(
        Trajectory(messages_and_choices=[{"role": "user", "content": "Say it."}, choice(text)], agent=agent, reward=0.9)
        for agent in agents or (None,)
    )


def test_a_group_holds_every_model_s_samples_of_a_task_without_earlier_rewards() -> None:
    groups = joint_groups(
        {
            "one": {("a", 0): episode("x"), ("b", 0): episode("y")},
            "two": {("a", 0): episode("z"), ("a", 1): episode("w")},
        }
    )
    assert [group.metadata["task"] for group in groups] == ["a", "b"]
    assert [(m.metadata["model"], m.metadata["sample"]) for m in groups[0]] == [("one", 0), ("two", 0), ("two", 1)]
    assert all(member.reward is None for group in groups for member in group)


def test_each_agent_of_an_episode_is_compared_with_the_same_agent() -> None:
    groups = joint_groups({"one": {("a", 0): episode("x", "p", "q")}, "two": {("a", 0): episode("y", "p", "q")}})
    assert [[member.agent for member in group] for group in groups] == [["p", "p"], ["q", "q"]]


def test_another_attempt_has_another_digest() -> None:
    (one,) = joint_groups({"one": {("a", 0): episode("x")}})
    (same,) = joint_groups({"one": {("a", 0): episode("x")}})
    (other,) = joint_groups({"one": {("a", 0): episode("y")}})
    (renamed,) = joint_groups({"two": {("a", 0): episode("x")}})
    assert one.metadata["attempts"] == same.metadata["attempts"]
    assert len({each.metadata["attempts"] for each in (one, other, renamed)}) == 3
