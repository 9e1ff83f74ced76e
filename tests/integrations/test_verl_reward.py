"""verl's compute_score over a judge service: samples come one by one, and each gets the score of its whole group."""

import asyncio
import functools
import inspect
import math
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import gavel
from gavel.integrations import verl
from gavel.scenarios.errors import JudgeError
from tests.endpoint import says
from tests.integrations.conftest import JudgeService
from tests.integrations.letters_judge import by_letters_and_position
from tests.judge.service.in_process import MODEL

pytestmark = pytest.mark.slow

TASKS = ["one", "two", "three"]
ANSWERS = ["a b", "a a", "b b", "a c d e"]


def sample(task: str, answer: str, **info: Any) -> dict[str, Any]:
    """What verl's reward manager calls compute_score with."""
    prompt = [{"role": "user", "content": f"write {task}"}]
    extra = {"index": 3, "num_turns": None, "rollout_reward_scores": {}, "raw_prompt": prompt, **info}
    return {"data_source": "letters", "solution_str": answer, "ground_truth": "a", "extra_info": extra}


async def scored(compute: Callable[..., Awaitable[dict[str, Any]]], samples: list[dict[str, Any]]) -> list[float]:
    """The scores of samples that are sent at once, in random order."""
    order = random.Random(0).sample(range(len(samples)), len(samples))
    found = await asyncio.gather(*(compute(**samples[number]) for number in order))
    return [result["score"] for _, result in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]


async def test_each_sample_gets_its_score_of_the_whole_group(service: JudgeService):
    service.endpoint.script = [by_letters_and_position]
    compute = verl(service.url, n=4)
    rewards = await scored(compute, [sample(task, answer) for task in TASKS for answer in ANSWERS])
    judge = gavel.Judge(gavel.Juror(MODEL, params=service.endpoint.params), orders=2)
    for number, task in enumerate(TASKS):
        members = [
            gavel.Trajectory(
                messages_and_choices=[
                    {"role": "user", "content": f"write {task}"},
                    {"role": "assistant", "content": answer},
                ]
            )
            for answer in ANSWERS
        ]
        judged = await judge.score(gavel.TrajectoryGroup(members, metadata={"truth": {"reference": "a"}}))
        assert rewards[4 * number : 4 * number + 4] == [trajectory.reward for trajectory in judged]


async def test_a_prompt_that_comes_back_is_the_next_group(service: JudgeService):
    compute = verl(service.url, n=2)
    assert await scored(compute, [sample("task 2", "a b"), sample("task 2", "a")]) == [0.5, 1.0]
    assert await scored(compute, [sample("task 2", "b"), sample("task 2", "a")]) == [0.0, 1.0]
    assert sorted(await scored(compute, [sample("task 2", answer) for answer in ("a", "b", "a b", "a c d e")])) == [
        0.0,
        0.25,
        0.5,
        1.0,
    ]


async def test_what_the_judge_cannot_score_is_an_error_or_equal_in_its_group(service: JudgeService):
    service.endpoint.script = [lambda request: says("I cannot tell.")]
    pair = [sample("task 3", "a b"), sample("task 3", "a")]
    with pytest.raises(JudgeError, match="not scored whole"):
        await scored(verl(service.url, n=2), pair)
    results = await asyncio.gather(*(verl(service.url, n=2, run="other", unscored="group")(**one) for one in pair))
    assert [(one["score"], one["judge_unscored"]) for one in results] == [(0.5, 1.0)] * 2
    assert all(math.isnan(one["judge_score"]) and one["judge_explanation"] for one in results)


async def test_equal_samples_have_equal_rewards_and_are_no_error(service: JudgeService):
    assert await scored(verl(service.url, n=2), [sample("task 4", "a"), sample("task 4", "a")]) == [0.5, 0.5]


async def test_the_ground_truth_is_shown_unless_it_is_not_wanted(service: JudgeService):
    def pair() -> list[dict[str, Any]]:
        return [{**sample("task 5", answer), "ground_truth": "zebra"} for answer in ("a", "b")]

    await scored(verl(service.url, n=2), pair())
    assert "zebra" in str(service.endpoint.requests[-1])
    await scored(verl(service.url, n=2, reference=False), pair())
    assert "zebra" not in str(service.endpoint.requests[-1])


async def test_a_sample_without_its_prompt_is_refused_and_the_field_can_be_named(service: JudgeService):
    bare = {**sample("task 6", "a"), "extra_info": {"question": "write task 6"}}
    with pytest.raises(JudgeError, match="no 'raw_prompt'"):
        await verl(service.url, n=2)(**bare)
    other = {**bare, "solution_str": "b"}
    assert await scored(verl(service.url, n=2, prompt="question"), [bare, other]) == [1.0, 0.0]


async def test_a_group_that_is_not_complete_is_closed_at_its_deadline(service: JudgeService):
    with pytest.raises(JudgeError, match="not scored whole"):  # one sample is compared with nothing
        await verl(service.url, n=2, deadline=0.5)(**sample("task 7", "a b"))


def test_verl_takes_it_for_an_async_function_also_with_arguments_of_its_own():
    compute = verl("http://127.0.0.1:1", n=2)
    assert inspect.iscoroutinefunction(compute)
    assert inspect.iscoroutinefunction(functools.partial(compute, x=1))


def test_a_service_must_be_named_and_numbers_cannot_be_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GAVEL_JUDGE_URL", raising=False)
    with pytest.raises(JudgeError, match="no address of a judge service"):
        verl(n=2)
    with pytest.raises(JudgeError, match="there is no unscored='member'"):
        verl("http://127.0.0.1:1", n=2, unscored="member")  # type: ignore[arg-type]
