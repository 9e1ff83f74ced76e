"""Requests of a program, put together again as conversations."""

from typing import Any

from openai.types.chat.chat_completion import Choice

from gavel.integrations.verifiers.relay import Conversations
from gavel.scenarios.trajectory import Trajectory


def choice(content: str, **more: Any) -> Choice:
    message = {"role": "assistant", "content": content, **more}
    return Choice.model_validate({"index": 0, "finish_reason": "stop", "message": message, "token_ids": [1, 2]})


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def said(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def test_a_request_continues_the_conversation_that_it_begins_with():
    talks = Conversations()
    talks.add([user("a")], None, choice("A"))
    talks.add([user("sub")], None, choice("S"))
    talks.add([user("a"), said("A"), user("b")], None, choice("B"))
    trajectory = Trajectory()
    talks.into(trajectory)
    assert [message["content"] for message in trajectory.messages()] == ["a", "A", "b", "B"]
    assert [history.messages()[0]["content"] for history in trajectory.additional_histories] == ["sub"]
    assert [each.model_extra for each in trajectory.choices()] == [{"token_ids": [1, 2]}] * 3
    assert talks.turns == 3


def test_a_rewritten_history_begins_another_conversation():
    talks = Conversations()
    talks.add([user("a")], None, choice("A"))
    talks.add([user("a"), said("shortened"), user("b")], None, choice("B"))
    trajectory = Trajectory()
    talks.into(trajectory)
    assert len(trajectory.messages()) == 4
    assert len(trajectory.additional_histories) == 1
    assert len(list(trajectory.choices())) == 2


def test_the_same_request_twice_is_two_conversations():
    talks = Conversations()
    talks.add([user("a")], None, choice("A"))
    talks.add([user("a")], None, choice("A"))
    trajectory = Trajectory()
    talks.into(trajectory)
    assert len(trajectory.additional_histories) == 1


def test_no_request_leaves_an_empty_trajectory():
    trajectory = Trajectory()
    Conversations().into(trajectory)
    assert trajectory.messages() == []
