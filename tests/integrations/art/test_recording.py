"""What any client over httpx asks of a chat model becomes a trajectory, and so does what a LangGraph agent asks."""

import importlib
import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from gavel.integrations.art.auto_trajectory import auto_trajectory, capture_auto_trajectory
from gavel.integrations.art.langgraph import init_chat_model, wrap_rollout
from gavel.integrations.art.local import LocalBackend
from gavel.integrations.art.model import Model, TrainableModel
from gavel.integrations.art.trajectories import Trajectory, TrajectoryGroup
from tests.endpoint import Endpoint, Request, says
from tests.fake_server import Answer

SEND = (httpx.Client.send, httpx.AsyncClient.send)
ASK = {"role": "user", "content": "Where is it?"}
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}


def streamed(request: Request) -> Answer:
    parts: list[dict[str, Any]] = [
        {"delta": {"role": "assistant", "content": "on "}, "finish_reason": None},
        {"delta": {"content": "its\u2028way"}, "finish_reason": None},
        {"delta": {}, "finish_reason": "stop", "token_ids": [5, 6], "prompt_token_ids": [1]},
    ]
    fields = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    events = [json.dumps({**fields, "choices": [{"index": 0, **part}]}, ensure_ascii=False) for part in parts]
    body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
    return Answer(body.encode(), headers={"Content-Type": "text/event-stream"})


async def test_turns_of_one_conversation_are_one_history_and_others_are_added(endpoint: Endpoint) -> None:
    endpoint.script = [lambda _: says("", tool_calls=[CALL]), *[lambda _: says("There.")] * 3]

    async def agent() -> None:
        async with AsyncOpenAI(base_url=f"{endpoint.url}/v1", api_key="none") as client:
            create: Any = client.chat.completions.create
            reply = (await create(model="m", messages=[ASK], tools=[])).choices[0].message
            compact = {**CALL, "function": {"name": "look", "arguments": '{"a":1}'}}
            said = {"role": "assistant", "content": reply.content, "tool_calls": [compact]}
            answered = {"role": "tool", "tool_call_id": "1", "content": "here"}
            await create(model="m", messages=[ASK, said, answered])
            await create(model="m", messages=[{"role": "user", "content": "Sum up."}])
            rewritten = {"role": "assistant", "content": "shortened"}
            await create(model="m", messages=[ASK, rewritten, {"role": "user", "content": "More."}])
        auto_trajectory(required=True).reward = 0.5

    trajectory = await capture_auto_trajectory(agent())
    assert [message["role"] for message in trajectory.messages()] == ["user", "assistant", "tool", "assistant"]
    assert [len(history.messages_and_choices) for history in trajectory.additional_histories] == [2, 4]
    assert len(list(trajectory.choices())) == 4
    assert trajectory.reward == 0.5


async def test_a_streamed_reply_is_recorded_with_its_token_ids(endpoint: Endpoint) -> None:
    endpoint.script = [streamed]

    async def agent() -> None:
        async with AsyncOpenAI(base_url=f"{endpoint.url}/v1", api_key="none") as client:
            create: Any = client.chat.completions.create
            async for _ in await create(model="m", messages=[ASK], stream=True):
                pass

    (choice,) = (await capture_auto_trajectory(agent())).choices()
    assert choice.message.content == "on its\u2028way"
    assert choice.model_dump()["token_ids"] == [5, 6]


async def test_what_is_no_chat_completion_is_not_recorded_and_httpx_is_as_it_was(endpoint: Endpoint) -> None:
    endpoint.script = [lambda _: Answer({"data": []}), lambda _: Answer(b"no json"), lambda _: Answer({}, 500)]

    async def agent() -> None:
        async with httpx.AsyncClient() as client:
            await client.post(f"{endpoint.url}/v1/embeddings", json={"input": "x"})
            for _ in range(2):
                await client.post(f"{endpoint.url}/v1/chat/completions", json={"messages": [ASK]})

    trajectory = await capture_auto_trajectory(agent())
    assert trajectory.messages() == []
    assert (httpx.Client.send, httpx.AsyncClient.send) == SEND
    assert auto_trajectory() is None
    with pytest.raises(RuntimeError, match="nothing is recorded here"):
        auto_trajectory(required=True)
    with pytest.raises(RuntimeError, match="inside a rollout"):
        init_chat_model()


async def test_the_returned_trajectory_holds_what_the_agent_asked(endpoint: Endpoint) -> None:
    endpoint.script = [lambda _: says("There.")]
    model = Model(name="m", project="p", inference_base_url=f"{endpoint.url}/v1", inference_api_key="none")

    async def rollout(model: Model[Any], *questions: str) -> Trajectory:
        async with AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key) as client:
            for question in questions:
                await client.chat.completions.create(model=model.name, messages=[{"role": "user", "content": question}])
        return Trajectory(reward=0.5)

    trajectory = await wrap_rollout(model, rollout)(model, "Where?")
    assert [message["content"] for message in trajectory.messages()] == ["Where?", "There."]
    assert (len(list(trajectory.choices())), trajectory.reward) == (1, 0.5)
    with pytest.raises(RuntimeError, match="asked no chat model"):
        await wrap_rollout(model, rollout)(model)


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
