"""Rollouts against a real endpoint on loopback: how an episode ends, and what goes over the wire."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from openai import AsyncOpenAI

from gavel.scenarios.episode import Episode
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.tools import done
from gavel.scenarios.trajectory import Trajectory
from tests.endpoint import Answer, Endpoint, fails, says
from tests.judge.groups import choice
from tests.scenarios.scripts import scripted

SECRET = "the hidden word"


async def add(a: int, b: int) -> int:
    return a + b


def submit(answer: str, task: Task) -> Any:
    """Submit the answer."""
    return done(answer == task.data["answer"])


TASK = Task(user="How much is 1 + 2?", data={"answer": SECRET})
SCENARIO = Scenario("sums", system="You add.", tasks=[TASK], held_out=[], tools=[add, submit], max_turns=4)


Play = Callable[..., Awaitable[Trajectory]]


class Served:
    """A chat model that is served at an address."""

    def __init__(self, base_url: str = "http://127.0.0.1:9/v1") -> None:
        client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
        self.openai_client, self.get_inference_name = (lambda: client), (lambda: "adder@7")


@pytest.fixture
def model(endpoint: Endpoint) -> Served:
    return Served(endpoint.params["api_base"])


@pytest.fixture
def play(endpoint: Endpoint, model: Served) -> Play:
    async def play(*replies: Answer, **options: Any) -> Trajectory:
        """An episode in which the endpoint gives these, one for each request; the last one for ever."""
        endpoint.script = [lambda request, reply=reply: reply for reply in replies]  # type: ignore[misc]
        return await rollout(model, SCENARIO, TASK, **options)

    return play


def calls(*tools: tuple[str, str], **extra: Any) -> Answer:
    """A turn that calls these tools, given as (name, arguments)."""
    answer = says(None, tool_calls=choice(calls=tools, call_id="call-").model_dump()["message"]["tool_calls"])
    answer.body["choices"][0] |= extra
    return answer


ADDS = calls(("add", '{"a": 1, "b": 2}'))


def tool_messages(trajectory: Trajectory) -> list[str]:
    return [message["content"] for message in trajectory.messages() if message["role"] == "tool"]


async def test_an_answer_without_a_tool_call_finishes_it_and_what_is_sent_is_what_it_holds(
    endpoint: Endpoint, play: Play
) -> None:
    extra = {"token_ids": [5, 6], "prompt_token_ids": [1, 2, 3, 4], "policy_version": 7}
    last = says("It is 3.")
    last.body["choices"][0] |= extra
    trajectory = await play(ADDS, calls(("submit", '{"answer": '), ("subtract", "")), last)
    assert (trajectory.status, trajectory.status_reason, trajectory.reward) == ("finished", None, None)
    assert trajectory.metrics == {"turns": 3, "tool_errors": 2}
    messages = trajectory.messages()
    told = [(each["tool_call_id"], each["content"]) for each in messages if each["role"] == "tool"]
    assert (told[0], told[1][0], told[2][0]) == (("call-0", "3"), "call-0", "call-1")
    assert "not valid JSON" in told[1][1]
    assert "there is no tool 'subtract'; the tools are add, submit" in told[2][1]
    assert messages[-1]["content"] == "It is 3."
    assert [request["messages"] for request in endpoint.requests] == [messages[:2], messages[:4], messages[:7]]
    assert messages[:2] == [{"role": "system", "content": "You add."}, {"role": "user", "content": TASK.user}]
    assert [request["tools"] for request in endpoint.requests] == [trajectory.tools] * 3
    assert trajectory.tools == SCENARIO.toolbox.schemas
    assert {request["model"] for request in endpoint.requests} == {"adder@7"}
    assert SECRET not in str(endpoint.requests)
    assert Task.of(trajectory.metadata) == TASK
    assert trajectory.metadata["scenario"] == "sums"
    assert trajectory.policy_version == 7
    *_, choice = Trajectory.from_json(trajectory.to_json()).choices()
    assert choice.model_extra == extra


async def test_a_tool_that_is_done_ends_it_after_all_calls_of_the_turn(endpoint: Endpoint, play: Play) -> None:
    trajectory = await play(calls(("submit", '{"answer": "3"}'), ("add", '{"a": 1, "b": 2}')))
    assert (trajectory.status, tool_messages(trajectory), len(endpoint.requests)) == ("finished", ["false", "3"], 1)


async def test_when_the_turns_are_used_up_it_is_truncated_and_each_has_its_seed(endpoint: Endpoint, play: Play) -> None:
    trajectory = await play(ADDS, temperature=0.7, max_tokens=64, seed=2**62 - 1)
    assert (trajectory.status, trajectory.status_reason) == ("truncated", "4 turns were used up")
    assert trajectory.metrics["turns"] == 4
    assert [request["seed"] for request in endpoint.requests] == [2**62 - 1 + turn for turn in range(4)]
    assert {request["temperature"] for request in endpoint.requests} == {0.7}
    assert {request["max_completion_tokens"] for request in endpoint.requests} == {64}


async def test_a_turn_that_reached_its_token_limit_is_truncated_and_calls_nothing(play: Play) -> None:
    trajectory = await play(calls(("submit", '{"answer": "'), finish_reason="length"))
    assert (trajectory.status, trajectory.status_reason) == ("truncated", "a turn reached its token limit")
    assert tool_messages(trajectory) == []
    assert len(list(trajectory.choices())) == 1


FULL = "This model's maximum context length is 4096 tokens, however you requested 9000 tokens"


@pytest.mark.parametrize(
    ("failure", "later", "first"),
    [(fails(500, "out of memory"), "failed", "failed"), (fails(400, FULL), "truncated", "failed")],
)
async def test_a_server_that_fails_later_leaves_what_was_done_before(
    endpoint: Endpoint, model: Served, failure: Any, later: str, first: str
) -> None:
    endpoint.script = [lambda request: ADDS, failure]
    trajectory = await rollout(model, SCENARIO, TASK)
    assert trajectory.status == later
    assert "out of memory" in (trajectory.status_reason or "") or "4096 tokens" in (trajectory.status_reason or "")
    assert [message["role"] for message in trajectory.messages()] == ["system", "user", "assistant", "tool"]
    assert Trajectory.from_json(trajectory.to_json()) == trajectory
    endpoint.script = [failure]
    assert (await rollout(model, SCENARIO, TASK)).status == first


async def test_a_long_result_is_cut_with_a_count_and_tokens_are_bounded_where_no_server_counts_them() -> None:
    def read(characters: int) -> str:
        """Read a file."""
        return "x" * characters

    steps = ("read", {"characters": 50_000}), ("read", {"characters": 1_000}), "Read."
    library = Scenario("library", tools=[read], tasks=[TASK], held_out=0, max_tool_characters=1_000)
    _, _, long, _, short, _ = (await rollout(scripted(*steps), library, TASK)).messages()
    assert long["content"] == "x" * 1_000 + "\n… 49,000 of 50,000 characters left out"
    assert short["content"] == "x" * 1_000
    book = Scenario("book", tools=[read], tasks=[TASK], held_out=0, max_turns=20, max_tokens=1_000)
    trajectory = await rollout(scripted(("read", {"characters": 2_000})), book, TASK)
    assert trajectory.status == "truncated"
    assert "at most 1,000 are allowed" in (trajectory.status_reason or "")
    assert trajectory.metrics["turns"] == 3


NO_CHOICE = "the model returned no choice"
CUSTOM = {"id": "c", "type": "custom", "custom": {"name": "add", "input": "1"}}


@pytest.mark.parametrize(
    ("answer", "reasons"),
    [
        (Answer({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": []}), [NO_CHOICE]),
        (Answer({"error": {"message": "quota"}}), [NO_CHOICE]),
        (Answer(None), [NO_CHOICE]),
        (Answer(b"<!DOCTYPE html><html></html>", headers={"Content-Type": "text/html"}), [NO_CHOICE, "api_base"]),
        (Answer({"choices": [{"index": 0, "finish_reason": "stop", "message": None}]}), [NO_CHOICE]),
        (calls(message=ADDS.body["choices"][0]["message"] | {"content": "\ud800"}), ["UnicodeEncodeError"]),
        (says(None, tool_calls=[CUSTOM]), ["tool calls of type custom are not supported"]),
    ],
)
async def test_a_turn_that_cannot_be_read_or_carried_on_is_a_failure(
    play: Play, answer: Answer, reasons: list[str]
) -> None:
    trajectory = await play(answer)
    assert trajectory.status == "failed"
    assert all(reason in (trajectory.status_reason or "") for reason in reasons)
    assert ("api_base" in (trajectory.status_reason or "")) == ("api_base" in reasons)
    assert bool(list(trajectory.choices())) == (NO_CHOICE not in reasons)


async def test_what_was_not_asked_for_is_not_sent(endpoint: Endpoint, model: Served) -> None:
    endpoint.script = [lambda request: says("Hello.")]
    trajectory = await rollout(model, Scenario("talk", system="", tasks=[TASK]), TASK)
    assert trajectory.tools is None
    assert set(endpoint.requests[0]) == {"messages", "model", "temperature"}
    assert endpoint.requests[0]["temperature"] == 1.0


def own(function: Any, **options: Any) -> Scenario:
    return Scenario("own", rollout=function, tasks=[TASK], held_out=[], **options)


async def test_an_own_rollout_is_given_the_model_the_task_and_the_episode(endpoint: Endpoint, model: Served):
    async def play(model: Any, task: Task, episode: Episode, scenario: Scenario) -> Trajectory:
        create = model.openai_client().chat.completions.create
        messages: Any = [{"role": "user", "content": task.user}]
        reply = await create(model=model.get_inference_name(), messages=messages, seed=episode.seed)
        return Trajectory(messages_and_choices=[*messages, reply.choices[0]], metadata={"note": scenario.name})

    endpoint.script = [lambda request: says(f"seed {request['seed']}")]
    trajectory = await rollout(model, own(play), TASK, seed=5)
    assert trajectory.messages()[-1]["content"] == "seed 5"
    assert trajectory.metadata["note"] == "own"
    assert Task.of(trajectory.metadata) == TASK


async def _hangs(model: Any, task: Task) -> Trajectory:
    await asyncio.sleep(60)
    return Trajectory()


def _gives(returned: object) -> Any:
    async def play(model: Any, task: Task) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    return play


async def _wants_too_much(model: Any, task: Task, colour: str) -> Trajectory:
    return Trajectory()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_hangs, "took longer than 0.05 s"),
        (_gives(OSError("out of order")), "OSError: out of order"),
        (_gives("an answer"), "must return a Trajectory"),
        (_gives([]), "the policy had no turn"),
        (_gives(["words"]), "this one returned str"),
        (_gives([Trajectory(), Trajectory()]), "need names"),
        (lambda model, task: Trajectory(), "begin it with `async def`"),
        (_wants_too_much, "colour"),
    ],
)
async def test_an_own_rollout_that_fails_costs_its_own_episode(function: Any, reason: str):
    trajectory = await rollout(Served(), own(function, max_seconds=0.05), TASK)
    assert trajectory.status == "failed"
    assert reason in (trajectory.status_reason or "")
    assert Task.of(trajectory.metadata) == TASK
