"""A wrapped rollout gets the conversations of its agent."""

from typing import Any

import pytest
from openai import AsyncOpenAI

from gavel.compat.art.langgraph import init_chat_model, wrap_rollout
from gavel.compat.art.model import Model
from gavel.compat.art.trajectories import Trajectory
from tests.endpoint import Endpoint, says


async def test_the_returned_trajectory_holds_what_the_agent_asked(endpoint: Endpoint) -> None:
    endpoint.script = [lambda _: says("There.")]
    model = Model(name="m", project="p", inference_base_url=f"{endpoint.url}/v1", inference_api_key="none")

    async def rollout(model: Model[Any], question: str) -> Trajectory:
        async with AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key) as client:
            await client.chat.completions.create(model=model.name, messages=[{"role": "user", "content": question}])
        return Trajectory(reward=0.5, metadata={"question": question})

    trajectory = await wrap_rollout(model, rollout)(model, "Where?")
    assert [message["content"] for message in trajectory.messages()] == ["Where?", "There."]
    assert (len(list(trajectory.choices())), trajectory.reward) == (1, 0.5)


async def test_an_agent_that_asked_nothing_is_an_error() -> None:
    async def rollout() -> Trajectory:
        return Trajectory()

    with pytest.raises(RuntimeError, match="asked no chat model"):
        await wrap_rollout(Model(name="m", project="p"), rollout)()


def test_a_chat_model_is_made_inside_a_rollout_only() -> None:
    with pytest.raises(RuntimeError, match="inside a rollout"):
        init_chat_model()
