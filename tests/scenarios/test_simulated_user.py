"""Simulated users: their words are user messages, counted, seeded, on a cassette, and never a silent end."""

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.llm.types import Message, Schema
from gavel.scenarios.episode import Episode
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.simulated_user import SimulatedUser
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from tests.endpoint import Endpoint, says
from tests.scenarios.scripts import scripted

TASK = Task(user="", data={"goal": "a refund"})


CLERK = scripted("I am sorry.", "I am very sorry.")


async def play(user: SimulatedUser, seed: int | None = None) -> Trajectory:
    desk = Scenario("desk", system="Help.", user=user, tasks=[TASK], held_out=0)
    return await rollout(CLERK, desk, TASK, seed=seed)


def person(*replies: str) -> tuple[Any, list[list[Message]]]:
    asked: list[list[Message]] = []

    async def reply(messages: list[Message], schema: Schema) -> str:
        asked.append(list(messages))
        return replies[min(len(asked), len(replies)) - 1]

    return reply, asked


def words(message: str, done: bool = False) -> str:
    return json.dumps({"message": message, "done": done})


async def test_the_person_opens_answers_and_ends_the_conversation():
    model, asked = person(words("Hello?"), words("I want a refund."), words("Thank you.", done=True))
    episode = await play(SimulatedUser(model, persona="impatient", goal=lambda task: str(task.data["goal"])))
    assert [(message["role"], message["content"]) for message in episode.messages()] == [
        ("system", "Help."),
        ("user", "Hello?"),
        ("assistant", "I am sorry."),
        ("user", "I want a refund."),
        ("assistant", "I am very sorry."),
        ("user", "Thank you."),
    ]
    assert episode.status == "finished"
    assert episode.metrics["user_calls"] == 3
    assert "impatient" in asked[0][0]["content"]
    assert "a refund" in asked[0][0]["content"]
    assert [message["role"] for message in asked[2]] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert len(list(episode.choices())) == 2  # what the person says is never trained


@pytest.mark.parametrize(
    "broken", ["", "Well.", "[1]", '{"message": 3, "done": true}', '{"message": "", "done": false}']
)
async def test_an_unreadable_reply_is_asked_for_again_and_then_fails_the_episode(broken: str):
    model, asked = person(broken, words("Hello?"), words("Bye.", done=True))
    assert (await play(SimulatedUser(model))).status == "finished"
    assert asked[1][-1]["content"].startswith("Reply with the JSON object alone")
    model, asked = person(broken)
    episode = await play(SimulatedUser(model))
    assert episode.status == "failed"
    assert "no reply that can be read" in (episode.status_reason or "")
    assert len(asked) == 3


async def test_through_litellm_it_has_a_seed_a_cost_and_a_cassette(endpoint: Endpoint, tmp_path: Path):
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    said = iter([words("Hello?"), words("Bye.", done=True)] * 2)
    endpoint.script = [lambda request: says(next(said), usage)]
    options: Any = {"params": {**endpoint.params}, "cassette": tmp_path / "c", "prices": {"openai/m": (1.0, 10.0)}}
    first, again, other = [await play(SimulatedUser("openai/m", **options), seed=seed) for seed in (5, 5, 6)]
    assert first.status == "finished", first.status_reason
    assert first.metrics["user_cost_usd"] == pytest.approx(2 * (100 * 1 + 10 * 10) / 1e6)
    assert [request["seed"] for request in endpoint.requests] == [5, 5, 6, 6]
    assert again.messages() == first.messages()
    assert (again.metrics["user_cost_usd"], other.metrics["user_calls"]) == (0, 2)
    without_a_key = await play(SimulatedUser("openai/gpt-5-mini"))
    assert without_a_key.status == "failed"
    assert "OPENAI_API_KEY" in (without_a_key.status_reason or "")


async def test_an_environment_may_ask_it_and_must_not_compete_with_it():
    model, _ = person(words("More."), words("Bye.", done=True))

    class Desk:
        async def reset(self, episode: Episode) -> None:
            self.person = SimulatedUser(model).meet(episode)

        async def observe(self, action: str) -> Any:
            return await self.person.answer(action)

    task = Task(user="Hi.")
    episode = await rollout(CLERK, Scenario("desk", environment=Desk, tasks=[task], held_out=0), task)
    said = [message["content"] for message in episode.messages() if message["role"] == "user"]
    assert said == ["Hi.", "More.", "Bye."]
    with pytest.raises(ScenarioError, match="both would answer"):
        Scenario("desk", environment=Desk, user=SimulatedUser(model), tasks=[TASK], held_out=0)
