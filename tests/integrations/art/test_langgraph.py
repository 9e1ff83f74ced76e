"""A wrapped rollout gets the conversations of its agent."""

import importlib
import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from gavel.integrations.art.langgraph import init_chat_model, wrap_rollout
from gavel.integrations.art.local import LocalBackend
from gavel.integrations.art.model import Model, TrainableModel
from gavel.integrations.art.trajectories import Trajectory, TrajectoryGroup
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


@pytest.mark.slow
@pytest.mark.frameworks
async def test_every_token_of_an_agent_of_langgraph_is_trained(tmp_path: Path) -> None:
    if importlib.util.find_spec("langchain_openai") is None:
        pytest.skip("make test-frameworks installs langchain_openai")

    def get_order(order_id: str) -> str:
        """Look up an order."""
        return f"order {order_id} arrives on Monday"

    async def rollout(question: str) -> Trajectory:
        graph: Any = importlib.import_module("langgraph.graph")
        tools: Any = importlib.import_module("langgraph.prebuilt").ToolNode([get_order])
        chat = init_chat_model().bind_tools([get_order])

        async def agent(state: dict[str, Any]) -> dict[str, Any]:
            return {"messages": [await chat.ainvoke(state["messages"])]}

        def after(state: dict[str, Any]) -> str:
            return "tools" if state["messages"][-1].tool_calls and len(state["messages"]) < 5 else graph.END

        builder = graph.StateGraph(graph.MessagesState)
        builder.add_node("agent", agent)
        builder.add_node("tools", tools)
        builder.set_entry_point("agent")
        builder.add_conditional_edges("agent", after)
        builder.add_edge("tools", "agent")
        await builder.compile().ainvoke({"messages": [("user", question)]})
        return Trajectory(reward=random.random())

    model = TrainableModel[None](name="desk", project="langgraph", base_model="embedded/returns-desk")
    async with LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        wrapped = wrap_rollout(model, rollout)
        group = await TrajectoryGroup(wrapped("Where is order 1001?") for _ in range(4))
        assert group.exceptions == []
        result = await model.train([group])
    sampled = sum(len(choice.model_dump()["token_ids"]) for member in group for choice in member.choices())
    assert (result.metrics["trajectories_trained"], result.metrics["tokens_trained"]) == (4, sampled)
