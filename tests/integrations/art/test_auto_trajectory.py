"""What any client over httpx asks of a chat model becomes a trajectory."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from gavel.integrations.art.auto_trajectory import auto_trajectory, capture_auto_trajectory
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


async def test_turns_of_one_conversation_are_one_history_and_another_one_is_added(endpoint: Endpoint) -> None:
    endpoint.script = [lambda _: says("", tool_calls=[CALL]), lambda _: says("There."), lambda _: says("Done.")]

    async def agent() -> None:
        async with AsyncOpenAI(base_url=f"{endpoint.url}/v1", api_key="none") as client:
            create: Any = client.chat.completions.create
            reply = (await create(model="m", messages=[ASK], tools=[])).choices[0].message
            compact = {**CALL, "function": {"name": "look", "arguments": '{"a":1}'}}
            said = {"role": "assistant", "content": reply.content, "tool_calls": [compact]}
            answered = {"role": "tool", "tool_call_id": "1", "content": "here"}
            await create(model="m", messages=[ASK, said, answered])
            await create(model="m", messages=[{"role": "user", "content": "Sum up."}])
        auto_trajectory(required=True).reward = 0.5

    trajectory = await capture_auto_trajectory(agent())
    assert [message["role"] for message in trajectory.messages()] == ["user", "assistant", "tool", "assistant"]
    assert [len(history.messages_and_choices) for history in trajectory.additional_histories] == [2]
    assert len(list(trajectory.choices())) == 3
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


async def test_a_client_in_a_thread_is_recorded_too(endpoint: Endpoint) -> None:
    endpoint.script = [lambda _: says("There.")]

    def ask() -> None:
        with OpenAI(base_url=f"{endpoint.url}/v1", api_key="none") as client:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Where?"}])

    assert len((await capture_auto_trajectory(asyncio.to_thread(ask))).messages()) == 2


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


async def test_a_client_over_httpx2_is_recorded_too(endpoint: Endpoint) -> None:
    httpx2 = pytest.importorskip("httpx2")
    endpoint.script = [lambda _: says("There.")]

    async def ask() -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "Where?"}]}
        async with httpx2.AsyncClient() as client:
            assert (await client.post(f"{endpoint.url}/v1/chat/completions", json=body)).status_code == 200
        with httpx2.Client() as client:
            client.get(f"{endpoint.url}/v1/models")

    trajectory = await capture_auto_trajectory(ask())
    assert [message["content"] for message in trajectory.messages()] == ["Where?", "There."]
    assert httpx2.AsyncClient.send.__module__ == "httpx2._client"
