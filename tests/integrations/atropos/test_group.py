"""Groups of Atropos as trajectories and back."""

import math

import pytest
from openai.types.chat.chat_completion import Choice
from pydantic import ValidationError

from gavel.integrations.atropos.group import NO_LOGPROB, TOKEN_ADVANTAGES, AtroposGroup, atropos_group, one_sequence
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

TWO_TURNS = {
    "tokens": [[7, 8, 20, 21, 9, 22], [7, 8, 23]],
    "masks": [[-100, -100, 20, 21, -100, 22], [-100, -100, 23]],
    "scores": [1.0, 0.25],
    "inference_logprobs": [[1.0, 1.0, -0.3, -0.1, 1.0, -0.7], [1.0, 1.0, -2.0]],
}


def decode(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def a_group(**changes: object) -> AtroposGroup:
    return AtroposGroup.model_validate(TWO_TURNS | changes)


def sampled(trajectory: Trajectory) -> list[dict]:
    return [choice.model_extra or {} for choice in trajectory.choices()]


def test_every_trained_stretch_is_a_turn_with_its_exact_prompt():
    first, second = a_group().trajectories(decode)
    turns = [(each["prompt_token_ids"], each["token_ids"], each["token_logprobs"]) for each in sampled(first)]
    assert turns == [([7, 8], [20, 21], [-0.3, -0.1]), ([7, 8, 20, 21, 9], [22], [-0.7])]
    assert [choice.message.content for choice in first.choices()] == ["20 21", "22"]
    assert (first.reward, second.reward) == (1.0, 0.25)
    assert a_group().other_targets() is None
    ones = a_group(masks=[[-100, -100, 20, 21, -100, 22], [-100, 0, 1]], inference_logprobs=None)
    assert ones.other_targets() == "masks[1][1] is 0, which is neither -100 nor the token, 8"


def test_the_judge_reads_the_messages_where_there_are_some():
    messages = [
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "An example?"},
            {"role": "assistant", "content": "an example"},
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": "first"},
            {"role": "tool", "content": "42", "tool_call_id": "a"},
            {"role": "assistant", "content": "second"},
        ],
        [{"role": "user", "content": "Go."}, {"role": "assistant", "content": None}],
    ]
    first, second = a_group(messages=messages).trajectories(decode)
    assert [choice.message.content for choice in first.choices()] == ["first", "second"]  # not the example
    assert [message["role"] for message in first.messages()] == [message["role"] for message in messages[0]]
    assert [choice.message.content for choice in second.choices()] == [None]
    messages[1][1]["tool_calls"] = "look_up(7)"  # of another shape: kept as text
    _, second = a_group(messages=messages).trajectories(decode)
    assert "look_up(7)" in (next(second.choices()).message.content or "")


def test_advantages_go_to_the_turns_of_their_tokens():
    group = a_group(advantages=[[9, 9, 0.5, 0.25, 9, -1], [9, 9, 2]], overrides=[None, {"set_advantage_to_zero": True}])
    first, second = group.trajectories(decode)
    assert [each[TOKEN_ADVANTAGES] for each in sampled(first)] == [[0.5, 0.25], [-1.0]]
    assert [each[TOKEN_ADVANTAGES] for each in sampled(second)] == [[0.0]]


def test_the_temperature_is_the_members_own_else_the_groups():
    group = a_group(
        overrides=[{"temperature": 0.25}, None],
        generation_params={"temperature": 0.5},
        group_overrides={"temperature": 2},
    )
    first, second = group.trajectories(decode)
    assert [each["temperature"] for each in sampled(first) + sampled(second)] == [0.25, 0.25, 0.5]
    assert a_group(group_overrides={"temperature": 2}).temperature(0) == 2.0
    for strange in (0, -1, "hot", None, math.nan):
        assert a_group(generation_params={"temperature": strange}).temperature(0) == 1.0


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tokens": []}, "at least 1 item"),
        (
            {"tokens": [[7, 8, 20, 21, 9, 22], []], "masks": [TWO_TURNS["masks"][0], []], "inference_logprobs": None},
            "tokens[1] is empty",
        ),
        ({"tokens": [[7, 8, 20, 21, 9, -22], [7, 8, 23]]}, "no token id"),
        ({"masks": [[-100], [-100]]}, "masks[0] has 1 entries, and tokens[0] has 6"),
        ({"masks": [TWO_TURNS["masks"][0]]}, "masks has 1 members, and tokens has 2"),
        ({"scores": [1.0, math.nan]}, "a score is not a finite number"),
        ({"inference_logprobs": [[1.0, 1.0, -0.3, 0.5, 1.0, -0.7], [1.0, 1.0, -2.0]]}, "above 0"),
        ({"messages": [[{"role": "user"}], []]}, "lacks role or content"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_its_place(changes: dict, told: str):
    with pytest.raises(ValidationError) as raised:
        a_group(**changes)
    assert told in str(raised.value)


def turn(prompt: list[int], ids: list[int], **extra: object) -> Choice:
    fields = {"prompt_token_ids": prompt, "token_ids": ids, "token_logprobs": [-0.5] * len(ids)} | extra
    message = {"role": "assistant", "content": None}
    return Choice.model_validate({"index": 0, "finish_reason": "stop", "message": message, **fields})


@pytest.mark.parametrize(
    ("turns", "why"),
    [
        ([], "nothing was sampled"),
        ([turn([1], [2]), turn([1, 3], [4])], "not one token sequence"),
        ([turn([1], [2, 3], token_logprobs=[-0.1])], "2 token ids but 1 log-probs"),
        ([turn([1], [2], token_logprobs=None)], "no token ids or log-probs"),
        ([turn([1], [2], token_ids=None)], "no token ids or log-probs"),
    ],
)
def test_a_trajectory_that_is_not_one_sequence_is_left_out_with_the_reason(turns: list[Choice], why: str):
    trajectory = Trajectory(messages_and_choices=turns, reward=1.0)
    assert why in str(one_sequence(trajectory))
    assert atropos_group(TrajectoryGroup([trajectory]))[0] is None
    good = Trajectory(messages_and_choices=[turn([1], [2])], reward=0.0)
    made, left_out = atropos_group(TrajectoryGroup([trajectory, good]))
    assert len(left_out) == 1
    assert made is not None
    assert made.tokens == [[1, 2]]


def test_what_is_sent_has_content_in_every_message_and_one_on_prompt_positions():
    unscored = Trajectory(messages_and_choices=[turn([1], [2])])
    scored = Trajectory(
        messages_and_choices=[{"role": "user", "content": "Go"}, turn([1], [2], temperature=0.7)], reward=0.5
    )
    made, left_out = atropos_group(TrajectoryGroup([unscored, scored]))
    assert left_out == ["it has no score"]
    assert made is not None
    assert made.inference_logprobs == [[NO_LOGPROB, -0.5]]
    assert made.messages == [[{"role": "user", "content": "Go"}, {"role": "assistant", "content": ""}]]
    assert made.generation_params == {"temperature": 0.7}
