"""Trajectories as ART's scripts make and read them."""

import pytest
from openai.types.chat.chat_completion import Choice

from gavel.integrations.art.trajectories import History, Trajectory, TrajectoryGroup

TURN = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None}}


class Mail(Trajectory):
    answer: str | None = None


def test_the_reward_is_0_from_the_start_and_fields_of_one_s_own_stay() -> None:
    mail = Mail(messages_and_choices=[], answer="Monday", metadata={"step": 1})
    assert (mail.reward, mail.answer, mail.logs, mail.metrics) == (0.0, "Monday", [], {})
    (kept,) = TrajectoryGroup([mail])
    assert kept is mail
    assert "reward=0.0" in str(mail)


def test_every_message_has_a_content() -> None:
    items = [{"role": "user", "content": "hi"}, Choice.construct(None, **TURN), {"role": "tool", "tool_call_id": "1"}]
    assert [message["content"] for message in Trajectory(messages_and_choices=items).messages()] == ["hi", "", ""]
    assert [message["content"] for message in History(messages_and_choices=items).messages()] == ["hi", "", ""]


async def test_a_duration_is_tracked_with_and_without_async() -> None:
    trajectory = Trajectory()
    async with trajectory.track_duration("llm"):
        pass
    once = trajectory.metrics["llm_duration"]
    with trajectory.track_duration("llm"):
        pass
    with pytest.raises(ValueError, match="no"), trajectory.track_duration("tool"):
        raise ValueError("no")
    assert trajectory.metrics["llm_duration"] >= once >= 0
    assert set(trajectory.finish().metrics) == {"llm_duration", "tool_duration", "duration"}


def test_a_log_entry_says_which_messages_are_trained() -> None:
    items = [{"role": "user", "content": "hi"}, Choice.construct(None, **TURN)]
    entry = Trajectory(messages_and_choices=items, reward=0.5).for_logging()
    assert [message["trainable"] for message in entry["messages"]] == [False, True]
    assert entry["reward"] == 0.5


def test_an_exception_of_a_group_is_told() -> None:
    group = TrajectoryGroup([Trajectory()], exceptions=[ValueError("no")], metadata={"task": 3})
    assert [(error.type, error.message) for error in group.exceptions] == [("ValueError", "no")]
    assert len(group) == 1
