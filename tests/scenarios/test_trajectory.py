"""Trajectories and groups: JSON round trips, and how a pending group is run."""

import asyncio
import gc
import json
import math
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice
from openai.types.responses import Response

from gavel.base.fields import FieldError
from gavel.llm.providers import load_litellm
from gavel.scenarios.formats.reading import read_groups
from gavel.scenarios.formats.row import RowError
from gavel.scenarios.group import (
    RECORD_VERSION,
    PendingGroupError,
    RecordVersionError,
    TrajectoryGroup,
    from_row,
    to_line,
)
from gavel.scenarios.judgement import GroupJudgement, Judgement, Vote
from gavel.scenarios.trajectory import History, NotANumberError, RolloutError, Trajectory, as_item
from tests.scenarios.scripts import act, names, nothing_left_unawaited

any_text = st.text(st.characters())
"""Lone surrogates included."""
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)
any_float = st.floats(allow_nan=False)


def sampled(content: str | None = "hello", finish_reason: str | None = "stop", **extra: object) -> Choice:
    """A choice as the OpenAI client makes it from a server's reply."""
    reply = ChatCompletion.construct(
        choices=[
            {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": content}} | extra
        ]
    )
    return reply.choices[0]


@st.composite
def choices(draw: st.DrawFn) -> Choice:
    tokens = [
        {"token": draw(any_text), "logprob": draw(any_float), "bytes": None, "top_logprobs": []}
        for _ in range(draw(st.integers(0, 3)))
    ]
    return sampled(
        draw(any_text | st.none()),
        draw(st.sampled_from(["stop", "length", "tool_calls", "abort", None])),
        logprobs=draw(st.sampled_from([None, {"content": tokens, "refusal": None}])),
        token_ids=draw(st.lists(st.integers(0, 2**31), max_size=3)),
        prompt_token_ids=[1, 2],
        policy_version=draw(st.integers(0, 9)),
    )


messages = st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": any_text, "extra": any_json})
history: Any = {
    "messages_and_choices": st.lists(messages | choices(), max_size=3),
    "tools": st.none() | st.just([{"type": "function", "function": {"name": "f", "parameters": {}}}]),
}
record: Any = {
    "metrics": st.dictionaries(any_text, any_float | st.booleans() | st.integers(), max_size=3),
    "metadata": st.dictionaries(any_text, any_json, max_size=3),
    "logs": st.lists(any_text, max_size=2),
}
scores = st.dictionaries(any_text, st.floats(0, 1), max_size=2)
votes = st.builds(Vote, score=st.floats(0, 1), position=st.just(0), order=st.just(0), model=any_text, criteria=scores)
trajectories = st.builds(
    Trajectory,
    **history,
    **record,
    additional_histories=st.lists(st.builds(History, **history), max_size=2),
    reward=st.none() | any_float,
    judgement=st.none() | st.builds(Judgement, explanation=any_text, votes=st.lists(votes, max_size=2)),
    status=st.sampled_from(["finished", "truncated", "failed"]),
    status_reason=st.none() | any_text,
    policy_version=st.none() | st.integers(),
)
groups = st.builds(
    TrajectoryGroup,
    **record,
    trajectories=st.lists(trajectories, max_size=2),
    exceptions=st.lists(st.builds(RolloutError, type=any_text, message=any_text, traceback=any_text), max_size=2),
    judgement=st.none() | st.builds(GroupJudgement, status=st.just("partial"), cost_usd=st.none() | st.floats(0, 9)),
)


@settings(max_examples=60)
@given(groups)
def test_a_group_comes_back_from_json_as_it_was(group: TrajectoryGroup) -> None:
    back = TrajectoryGroup.from_json(group.to_json())
    assert back == group
    assert repr(back.model_dump(warnings=False)) == repr(group.model_dump(warnings=False))  # 1, 1.0 and True are equal


def test_what_servers_send_nan_and_infinities_come_back() -> None:
    choice = sampled(finish_reason="abort", logprobs={"content": [{"token": "a", "logprob": None}]}, stop_reason=7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = Trajectory(messages_and_choices=[choice]).to_json()
    assert Trajectory.from_json(text).messages_and_choices == [choice]
    trajectory = Trajectory(
        messages_and_choices=[{"role": "user", "content": "x", "weight": math.inf}, sampled(score=math.nan)],
        reward=math.nan,
        metrics={"low": -math.inf},
        metadata={"deep": [math.nan]},
    )
    back = Trajectory.from_json(trajectory.to_json())
    assert math.isnan(back.reward)
    assert back.metrics == {"low": -math.inf}
    assert math.isnan(back.metadata["deep"][0])
    assert back.messages_and_choices[0]["weight"] == math.inf
    assert math.isnan(back.messages_and_choices[1].model_extra["score"])


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        *(("reward", given, kept) for given, kept in (("0.9", 0.9), (np.float32(0.5), 0.5), (True, 1.0), (None, None))),
        *(("reward", given, NotANumberError) for given in ("good", [1.0])),
        ("metrics", {"a": 1, "b": True, "c": np.bool_(0)}, {"a": 1, "b": True, "c": False}),
        ("metrics", {"a": np.float32(0.5), "b": Fraction(1, 2)}, {"a": 0.5, "b": 0.5}),
        *(("metrics", {"solved": given}, NotANumberError) for given in ("yes", "0.5", None, [1], 1j)),
    ],
)
def test_rewards_and_metrics_are_numbers(field: str, value: Any, kept: Any) -> None:
    trajectory = Trajectory()
    if kept is NotANumberError:
        with pytest.raises(NotANumberError) as refused:
            setattr(trajectory, field, value)
        assert refused.value.remedy
        for record in (Trajectory, TrajectoryGroup)[: 1 + (field == "metrics")]:
            with pytest.raises(NotANumberError):
                record(**{field: value})
        return
    setattr(trajectory, field, value)
    trajectory.metrics["appended"] = np.float32(0.5)  # type: ignore[assignment]
    assert Trajectory.from_json(trajectory.to_json()).metrics.pop("appended") == trajectory.metrics.pop("appended")
    assert repr(getattr(trajectory, field)) == repr(getattr(Trajectory(**{field: value}), field)) == repr(kept)


def test_the_closing_text_is_what_the_agent_says_last() -> None:
    parts: Any = {"role": "assistant", "content": [{"type": "text", "text": "bye"}]}
    for *items, said in (
        ("",),
        (sampled("bye"), "bye"),
        (parts, "bye"),
        (sampled(None), ""),
        (sampled("bye"), {"role": "user", "content": "wait"}, ""),
    ):
        assert Trajectory(messages_and_choices=items).closing_text() == said


async def test_members_may_be_complete_tasks_errors_or_coroutines_and_some_may_fail() -> None:
    async def forgets_to_return() -> None:
        pass

    async def cancels_itself() -> Trajectory:
        raise asyncio.CancelledError

    task = asyncio.create_task(act("task"))
    complete = Trajectory(metadata={"name": "complete"})
    group = TrajectoryGroup([task, complete, ValueError("early"), act("last"), forgets_to_return(), cancels_itself()])
    assert group.pending == 6
    with pytest.raises(PendingGroupError, match="6 rollouts"):
        len(group)
    assert names(await group) == [["task", "complete", "last"]]
    told = [error.message for error in group.exceptions]
    assert told[0] == "early"
    assert "returned NoneType" in told[1]
    assert "cancelled from within" in told[2]


async def test_a_cancelled_group_leaves_nothing_unawaited() -> None:
    hold = asyncio.Event()
    gc.collect()  # what earlier tests left behind warns now
    with nothing_left_unawaited():
        for yields in range(1, 4):
            waiting = asyncio.ensure_future(TrajectoryGroup([act("a", after=hold), act("b", after=hold)]))
            for _ in range(yields):
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        TrajectoryGroup([act("never")]).discard_pending()


def test_a_line_of_another_version_is_refused_and_one_without_a_version_is_read(tmp_path: Path) -> None:
    group = TrajectoryGroup([Trajectory(messages_and_choices=[{"role": "user", "content": "hi"}], reward=0.5)])
    line, path = to_line(group), tmp_path / "judged.jsonl"
    for version in (RECORD_VERSION + 1, "two", None, True, 0):
        with pytest.raises(RecordVersionError, match="format_version"):
            from_row(json.loads(line) | {"format_version": version})
    path.write_text(f"{line}\n{group.to_json()}\n")
    assert len(read_groups(path)) == 2
    path.write_text(f"{line}\n{line.replace(':1,', ':2,', 1)}\n")
    with pytest.raises(RowError, match=r"judged\.jsonl:2 cannot be read: it has format_version"):
        read_groups(path)


def test_a_choice_that_is_appended_or_within_a_completion_is_understood_too() -> None:
    exact = {"token_ids": [5, 6], "prompt_token_ids": [1, 2], "policy_version": 3}
    choice: Any = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
    trajectory = Trajectory()
    trajectory.messages_and_choices.append(load_litellm().types.utils.Choices(**choice, provider_specific_fields=exact))  # type: ignore[arg-type]
    assert [kept.model_dump()["token_ids"] for kept in trajectory.choices()] == [[5, 6]]
    assert trajectory.messages() == [{"role": "assistant", "content": "hi"}]
    again = Trajectory.from_json(trajectory.to_json())
    assert [kept.model_dump()["policy_version"] for kept in again.choices()] == [3]
    item = as_item({"object": "chat.completion", "choices": [choice | exact]})
    assert isinstance(item, Choice)
    assert item.model_dump()["token_ids"] == [5, 6]
    appended = Trajectory()
    appended.messages_and_choices += [{"role": "user", "content": "?"}, ChatCompletion.construct(choices=[sampled()])]
    TrajectoryGroup([appended])
    assert [*map(type, appended.messages_and_choices)] == [dict, Choice]


@pytest.mark.parametrize(
    ("item", "told"), [(Response.construct(None, object="response", output=[]), "capture"), ({"content": "b"}, "role")]
)
def test_what_is_no_message_or_stands_under_another_name_is_refused(item: Any, told: str) -> None:
    with pytest.raises(FieldError, match=told):
        Trajectory(messages_and_choices=[item])
    for kind in (Trajectory, History):
        with pytest.raises(ValueError, match="the conversation is messages_and_choices, not messages"):
            kind.model_validate({"messages": [{"role": "user", "content": "hello"}]})


def test_all_else_stays_as_it_is() -> None:
    like_a_choice = {"role": "user", "message": "hi", "finish_reason": "none"}
    for item in (like_a_choice, {"type": "mcp_call"}, 3, None, "text", ["a"]):
        assert as_item(item) is item


def test_durations_of_the_same_name_add_up() -> None:
    trajectory = Trajectory()
    for _ in range(2):
        with trajectory.track_duration("tools"):
            pass
    assert trajectory.metrics["duration/tools"] >= 0
    assert list(trajectory.metrics) == ["duration/tools"]
