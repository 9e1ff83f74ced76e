"""Captures: what any client samples with the key of one becomes its trajectory, whatever 64 agents do at once."""

import asyncio
import json
import os
import random
import subprocess
import sys

import httpx
import pytest
from openai import AsyncOpenAI, AuthenticationError

from gavel.trainer.data.token_sequences import sequences, turns_of
from gavel.trainer.engines.protocol import Sampled, SamplingRequest
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.serving.capture import KEY_PREFIX, Capture, CaptureError
from tests.limits import HANG_SECONDS
from tests.trainer.serving.served import OPENING, TOOLS, client_of, serving, until

pytestmark = pytest.mark.slow


async def say(client: AsyncOpenAI, messages, **settings) -> dict:
    settings = {"model": "desk", "tools": TOOLS, "temperature": 1.0, "max_tokens": 24} | settings
    choice = (await client.chat.completions.create(messages=messages, **settings)).choices[0]
    return choice.message.model_dump(exclude_none=True)


@pytest.mark.parametrize(("patience", "metrics"), [(60, {"turns": 1}), (0.1, {"turns": 0, "requests_unfinished": 1})])
async def test_a_request_in_flight_at_the_end_is_waited_for_or_counted(client, gate, patience, metrics):
    gate.opened.clear()
    before = gate.asked
    async with Capture(client, patience) as capture:
        asking = asyncio.create_task(say(client.with_options(api_key=capture.api_key), OPENING))
        await until(lambda: gate.asked > before)
        if patience > 1:
            asyncio.get_running_loop().call_later(0.3, gate.opened.set)
    gate.opened.set()
    await asking
    assert capture.trajectory.metrics == metrics
    assert (capture.trajectory.status == "failed") == (metrics["turns"] == 0)


async def test_a_turn_whose_client_went_away_is_left_out(client, gate):
    gate.opened.clear()
    async with Capture(client) as capture:
        agent, before = client.with_options(api_key=capture.api_key), gate.asked
        asking = asyncio.create_task(say(agent, OPENING))
        await until(lambda: gate.asked > before)
        asking.cancel()
        await asyncio.wait([asking])
        gate.opened.set()
        await say(agent, [{"role": "user", "content": "Hello"}])
    assert [message["content"] for message in capture.trajectory.messages()][:1] == ["Hello"]
    assert capture.trajectory.metrics == {"turns": 1, "turns_abandoned": 1}


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages", "models"])
async def test_a_key_of_no_open_capture_is_a_401_for_every_api(server, path):
    key = KEY_PREFIX + "0" * 32
    async with httpx.AsyncClient(trust_env=False) as client:
        for headers in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}):
            reply = await client.post(f"{server.base_url}/{path}", headers=headers, json={"model": "desk"})
            assert (reply.status_code, reply.json()["error"]["type"]) == (401, "authentication_error")
            assert "model.capture()" in reply.json()["error"]["message"]


async def test_the_key_ends_with_its_capture_which_keeps_its_turns_where_its_block_fails(client):
    agent = client
    with pytest.raises(KeyError, match="boom"):  # noqa: PT012
        async with Capture(client) as capture:
            agent = client.with_options(api_key=capture.api_key)
            await say(agent, OPENING)
            raise KeyError("boom")
    assert (capture.trajectory.status, capture.trajectory.status_reason) == ("failed", "KeyError: 'boom'")
    assert capture.trajectory.metrics == {"turns": 1}
    with pytest.raises(AuthenticationError, match="no open capture"):
        await say(agent, OPENING)
    assert await say(client, OPENING), "any other key is as good as before"


async def test_a_capture_is_used_in_order(client):
    capture = Capture(client)
    with pytest.raises(CaptureError, match="not open"):
        _ = capture.api_key
    async with capture:
        with pytest.raises(CaptureError, match="not ended"):
            _ = capture.trajectory
    with pytest.raises(CaptureError, match="used before"):
        await capture.__aenter__()


async def test_a_program_is_captured_by_its_environment(client, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "internal.example")
    asked = 'responses.create(model="desk", input="Hello", max_output_tokens=4)'
    program = f"import openai; print(openai.OpenAI().{asked}.status)"
    async with Capture(client) as capture:
        command, environment = [sys.executable, "-c", program], os.environ | capture.environment
        said = await asyncio.to_thread(subprocess.check_output, command, env=environment, text=True)
    assert said.strip() in ("completed", "incomplete")
    assert capture.trajectory.metrics == {"turns": 1}


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "bearer {}"},
        {"Authorization": "{}"},
        {"x-api-key": "{}"},
        {"Authorization": "Bearer another", "api-key": "{}"},
    ],
    ids=str,
)
async def test_the_key_is_found_wherever_it_is_put_and_tokens_are_kept_that_are_left_away(server, client, headers):
    async with Capture(client) as capture, httpx.AsyncClient(trust_env=False) as plain:
        given = {name: value.format(capture.api_key) for name, value in headers.items()}
        body = {"model": "desk", "messages": OPENING, "max_tokens": 2, "logprobs": False, "return_token_ids": False}
        url = f"{server.base_url}/chat/completions"
        assert (await plain.post(url, json=body, headers=given, timeout=HANG_SECONDS)).status_code == 200
    assert capture.trajectory.metrics["turns"] == 1
    assert sequences(capture.trajectory)[0].trained_tokens


AGENTS = 64


class Agent:
    def __init__(self, client, seed: int) -> None:
        self._client = client
        self._rng = random.Random(seed)

    async def talk(self, messages: list[dict], turns: int) -> None:
        for _ in range(turns):
            reply = await self._reply(messages)
            if reply is None:
                continue
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": self._rng.choice(["{}", "näh", "\ufffd"])}
                for call in reply.get("tool_calls", ())
            ]
            said = {"role": "user", "content": self._rng.choice(["And?", "日本", "", "😀"])}
            messages = [*messages, self._rewritten(reply), *(results or [said])]
            if self._rng.random() < 0.25:  # two go on with the same conversation
                await asyncio.gather(self.talk(messages, 1), self.talk(messages, 1))
                return

    async def _reply(self, messages: list[dict]) -> dict | None:
        """None where it goes away in the middle."""
        manner = self._rng.choice(["whole", "stream", "stream", "leave"])
        settings = {"max_tokens": self._rng.choice([3, 9, 30]), "seed": self._rng.choice([None, 5, 6])}
        settings |= {"tools": TOOLS, "temperature": 1.5, "stream": manner != "whole"}
        stream = await self._client.chat.completions.create(model="desk", messages=messages, **settings)
        if manner == "whole":
            return stream.choices[0].message.model_dump(exclude_none=True)
        text, calls = "", []
        async for chunk in stream:
            if manner == "leave" and self._rng.random() < 0.5:
                await stream.close()
                return None
            for choice in chunk.choices:
                text += choice.delta.content or ""
                calls += [call.model_dump(exclude={"index"}) for call in choice.delta.tool_calls or ()]
        return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})

    def _rewritten(self, reply: dict) -> dict:
        reply = json.loads(json.dumps(reply))
        for call in reply.get("tool_calls", ()):
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(arguments, separators=(",", ":"), sort_keys=True)
        rewriting = self._rng.choice(["parts", "other words", "none", "none"])
        if rewriting == "parts":
            reply["content"] = [{"type": "text", "text": reply["content"]}] if reply.get("content") else None
        elif rewriting == "other words":
            reply["content"] = "I said something else"
        return reply


async def test_what_is_trained_was_sampled_and_what_was_sampled_is_trained_or_counted(policy, monkeypatch):
    sampled, engines = list[tuple[SamplingRequest, Sampled]](), list[TransformersEngine]()
    submit = TransformersEngine.submit

    def noting(engine: TransformersEngine, request: SamplingRequest):
        engines.append(engine)
        future = submit(engine, request)
        future.add_done_callback(lambda done: done.cancelled() or sampled.append((request, done.result())))
        return future

    monkeypatch.setattr(TransformersEngine, "submit", noting)

    async def episode(seed: int) -> Capture:
        async with Capture(owner) as capture:
            await Agent(owner.with_options(api_key=capture.api_key), seed).talk([*OPENING], 2)
        return capture

    with serving(policy) as server:
        async with client_of(server).with_options(timeout=HANG_SECONDS) as owner:
            captures = await asyncio.gather(*map(episode, range(AGENTS)))
        await until(lambda: not (engines[0]._slots.busy.any() or engines[0]._running))
    known = {(tuple(asked.prompt_ids), tuple(each.token_ids), tuple(each.logprobs)) for asked, each in sampled}
    captured, abandoned = 0, 0
    for capture in captures:
        trajectory = capture.trajectory
        abandoned += int(trajectory.metrics.get("turns_abandoned", 0))
        turns = [turn for history in trajectory.histories() for turn in turns_of(history)]
        captured += len(turns)
        assert len(turns) == trajectory.metrics["turns"]
        assert {(tuple(turn.prompt_ids), tuple(turn.token_ids), tuple(turn.logprobs)) for turn in turns} <= known
        whole = {tuple(turn.prompt_ids + turn.token_ids) for turn in turns}
        trained = sequences(trajectory)
        samples = {turn.sample_id: turn for turn in turns}
        assert None not in samples
        assert sum(each.trained_tokens for each in trained) == sum(len(turn.token_ids) for turn in samples.values())
        for each in trained:
            assert all(tuple(each.token_ids[: end + 1]) in whole for end in each.turn_ends.values())
    assert captured <= len(sampled) <= captured + abandoned
