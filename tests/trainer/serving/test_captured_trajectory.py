"""The histories that sampled turns become."""

from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice

from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.serving.capture import CapturedTurn, captured_trajectory

TOOLS = [{"type": "function", "function": {"name": "look_up"}}]


def turn(number: int, parent: int | None = None, **extra) -> CapturedTurn:
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": f"reply {number}"},
        "policy_version": 3,
        **extra,
    }
    return CapturedTurn(parent, [{"role": "user", "content": f"question {number}"}], TOOLS, choice)


def tree(*parents: int | None) -> Trajectory:
    return captured_trajectory([turn(number, parent) for number, parent in enumerate(parents)])


def said(trajectory: Trajectory) -> list[list[str]]:
    """Of each history the replies; those that are trained have a star."""
    return [
        [
            f"{message['content'].split()[1]}{'*' * isinstance(item, Choice)}"
            for item, message in zip(history.messages_and_choices, history.messages(), strict=True)
            if message["role"] == "assistant"
        ]
        for history in trajectory.histories()
    ]


def test_an_agent_that_waits_for_a_longer_sub_agent_is_the_main_history():
    assert said(tree(None, None, 1, 2, 3, 0)) == [["0*", "5*"], ["1*", "2*", "3*", "4*"]]


def test_of_a_conversation_that_is_rewritten_at_every_turn_the_longest_is_the_main_history():
    turns = [turn(0), turn(1), turn(2)]
    turns[1].context.append({"role": "user", "content": "more"})
    assert said(captured_trajectory(turns)) == [["1*"], ["0*"], ["2*"]]


def test_a_turn_that_reached_its_limit_truncates_the_trajectory_if_it_is_the_last():
    cut = turn(1, 0, finish_reason="length")
    assert captured_trajectory([turn(0), cut]).status == "truncated"
    assert captured_trajectory([turn(0), cut, turn(2, 1)]).status == "finished"


def test_a_capture_of_nothing_failed_with_a_reason():
    trajectory = captured_trajectory([])
    assert trajectory.status == "failed"
    assert "no turn was sampled" in trajectory.status_reason


@st.composite
def forests(draw) -> list[int | None]:
    size = draw(st.integers(1, 12))
    return [draw(st.one_of(st.none(), st.integers(0, at - 1)) if at else st.none()) for at in range(size)]


@given(forests())
def test_every_turn_is_a_choice_once_after_what_it_continues(parents):
    histories = said(tree(*parents))
    numbers = [[int(reply.rstrip("*")) for reply in history] for history in histories]
    for history in numbers:
        assert [parents[number] for number in history] == [None, *history[:-1]]
    trained = sorted(int(reply[:-1]) for history in histories for reply in history if reply.endswith("*"))
    assert trained == list(range(len(parents)))
