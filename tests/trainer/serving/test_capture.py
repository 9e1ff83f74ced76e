"""Captures at a real endpoint: what a client samples with the key of a capture becomes its trajectory."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest
from openai import AsyncOpenAI, AuthenticationError

import gavel
from gavel.trainer.data.token_sequences import sequences
from gavel.trainer.data.training_batch import mismatches
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.serving.capture import KEY_PREFIX, Capture, CaptureError
from gavel.trainer.serving.openai_server import EndpointServer
from tests.limits import HANG_SECONDS
from tests.trainer.serving.served import QUESTION, SYSTEM, TOOLS, Gate, client_of, serving, tool_result

pytestmark = pytest.mark.slow

OPENING = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def gate() -> Gate:
    return Gate()


@pytest.fixture(scope="module")
def server(policy, gate) -> Iterator[EndpointServer]:
    with serving(policy, gate) as running:
        yield running
        gate.open()


@pytest.fixture
async def owner(server) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(server) as client:
        yield client


async def say(client: AsyncOpenAI, messages, **settings) -> dict:
    """The reply as a message."""
    settings = {"model": "desk", "tools": TOOLS, "temperature": 1.0, "max_tokens": 24} | settings
    choice = (await client.chat.completions.create(messages=messages, **settings)).choices[0]
    return choice.message.model_dump(exclude_none=True)


async def answered(reply: dict) -> list[dict]:
    """The reply and what its tools say, or a question."""
    calls = reply.get("tool_calls", ())
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": await tool_result(**call["function"])} for call in calls
    ]
    return [reply, *(results or [{"role": "user", "content": "And then?"}])]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_equal_samples_of_two_requests_are_both_trained(server, owner):
    async with Capture(owner) as capture, client_of(server, capture.api_key) as client:
        one, other = [await say(client, OPENING, temperature=0.0, max_tokens=4) for _ in range(2)]
    assert one["content"] == other["content"]
    first, second = sequences(capture.trajectory)
    assert (first.token_ids, first.sampled) == (second.token_ids, second.sampled)


async def test_every_sampled_token_is_trained_once_in_the_context_in_which_it_was_sampled(server, owner, policy):
    async def episode(seed: int) -> Capture:
        async with Capture(owner) as capture, client_of(server, capture.api_key) as client:
            messages = [*OPENING]
            for turn in range(3):
                messages += await answered(await say(client, messages, seed=seed + turn))
        return capture

    for capture in await asyncio.gather(*map(episode, range(0, 80, 10))):
        trajectory = capture.trajectory
        assert trajectory.metrics == {"turns": 3}
        assert trajectory.policy_version == 3
        assert [choice.continues_sampled for choice in trajectory.choices()] == [False, True, True]
        trained = sum(sequence.trained_tokens for sequence in sequences(trajectory))
        assert trained == sum(len(choice.token_ids) for choice in trajectory.choices())
        assert set(mismatches(trajectory, policy.decode)) <= {"template"}
        assert trajectory.tools == TOOLS


async def test_a_trajectory_of_a_capture_is_the_one_that_a_rollout_makes_itself(server, owner):
    trajectory = gavel.Trajectory(messages_and_choices=[*OPENING], tools=TOOLS)
    async with Capture(owner) as capture, client_of(server, capture.api_key) as client:
        for turn in range(2):
            reply = await client.chat.completions.create(
                model="desk", messages=trajectory.messages(), tools=TOOLS, seed=turn, max_tokens=24
            )
            trajectory.messages_and_choices.append(reply.choices[0])
            trajectory.messages_and_choices += (await answered(trajectory.messages()[-1]))[1:]
    said = capture.trajectory.messages()
    assert said == trajectory.messages()[: len(said)]
    assert sequences(capture.trajectory) == sequences(trajectory)


async def test_what_the_client_leaves_away_is_captured_all_the_same(server, owner):
    async with Capture(owner) as capture, client_of(server, capture.api_key) as client:
        await say(client, OPENING, logprobs=False, extra_body={"return_token_ids": False})
    assert sequences(capture.trajectory)[0].trained_tokens


async def test_sub_agents_and_branches_are_histories_of_their_own(server, owner):
    async with Capture(owner) as capture, client_of(server, capture.api_key) as client:
        main = [*OPENING, *await answered(await say(client, OPENING))]
        other = [{"role": "user", "content": "What is the policy for lamps?"}]
        for _ in range(3):
            other += await answered(await say(client, other))
        await say(client, main, seed=1)
        await say(client, main, seed=2)
    trajectory = capture.trajectory
    assert trajectory.metrics["turns"] == 6
    assert [
        len(list(gavel.Trajectory(messages_and_choices=history.messages_and_choices).choices()))
        for history in trajectory.histories()
    ] == [2, 1, 3]
    assert trajectory.messages()[:2] == OPENING
    trained = sum(sequence.trained_tokens for sequence in sequences(trajectory))
    assert trained == sum(len(choice.token_ids) for choice in trajectory.choices())


async def test_a_request_in_flight_at_the_end_is_waited_for(server, owner, gate):
    gate.shut()
    async with client_of(server) as client:
        before = gate.asked
        async with Capture(owner) as capture:
            asking = asyncio.create_task(say(client.with_options(api_key=capture.api_key), OPENING))
            await until(lambda: gate.asked > before)
            asyncio.get_running_loop().call_later(0.3, gate.open)
        await asking
    assert capture.trajectory.metrics == {"turns": 1}


async def test_a_request_that_takes_longer_is_left_out_and_counted(server, owner, gate):
    gate.shut()
    async with client_of(server) as client:
        before = gate.asked
        async with Capture(owner, patience=0.1) as capture:
            asking = asyncio.create_task(say(client.with_options(api_key=capture.api_key), OPENING))
            await until(lambda: gate.asked > before)
        gate.open()
        await asking
    assert capture.trajectory.metrics == {"turns": 0, "requests_unfinished": 1}
    assert capture.trajectory.status == "failed"


async def test_a_turn_whose_client_went_away_is_left_out(server, owner, gate):
    gate.shut()
    async with Capture(owner) as capture:
        async with client_of(server, capture.api_key) as client:
            before = gate.asked
            asking = asyncio.create_task(say(client, OPENING))
            await until(lambda: gate.asked > before)
            asking.cancel()
        gate.open()
        async with client_of(server, capture.api_key) as client:
            await say(client, [{"role": "user", "content": "Hello"}])
    assert [message["content"] for message in capture.trajectory.messages()][:1] == ["Hello"]
    assert capture.trajectory.metrics == {"turns": 1, "turns_abandoned": 1}


@pytest.mark.parametrize("key", [KEY_PREFIX + "0" * 32, KEY_PREFIX])
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages", "models"])
async def test_a_key_of_no_open_capture_is_a_401_for_every_api(server, key, path):
    async with httpx.AsyncClient(trust_env=False) as client:
        for headers in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}):
            reply = await client.post(f"{server.base_url}/{path}", headers=headers, json={"model": "desk"})
            assert (reply.status_code, reply.json()["error"]["type"]) == (401, "authentication_error")
            assert "model.capture()" in reply.json()["error"]["message"]


async def test_the_key_ends_with_its_capture(server, owner):
    async with Capture(owner) as capture, client_of(server, capture.api_key) as client:
        await say(client, OPENING)
    async with client_of(server, capture.api_key) as client:
        with pytest.raises(AuthenticationError, match="no open capture"):
            await say(client, OPENING)
    assert await say(owner, OPENING), "any other key is as good as before"


async def test_a_capture_whose_block_fails_keeps_its_turns_and_says_why(server, owner):
    capture = Capture(owner)

    async def episode() -> None:
        async with capture, client_of(server, capture.api_key) as client:
            await say(client, OPENING)
            raise KeyError("boom")

    with pytest.raises(KeyError, match="boom"):
        await episode()
    assert (capture.trajectory.status, capture.trajectory.status_reason) == ("failed", "KeyError: 'boom'")
    assert capture.trajectory.metrics == {"turns": 1}


async def test_a_capture_is_used_in_order(owner):
    capture = Capture(owner)
    with pytest.raises(CaptureError, match="not open"):
        _ = capture.api_key
    async with capture:
        with pytest.raises(CaptureError, match="not ended"):
            _ = capture.trajectory
    with pytest.raises(CaptureError, match="used before"):
        await capture.__aenter__()


async def test_a_program_is_captured_by_its_environment(server, owner, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "internal.example")
    program = """
import openai
client = openai.OpenAI()
print(client.responses.create(model="desk", input="Hello", max_output_tokens=4).status)
"""
    async with Capture(owner) as capture:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, env=os.environ | capture.environment,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, _ = await process.communicate()
    assert said.decode().strip() in ("completed", "incomplete")
    assert capture.trajectory.metrics == {"turns": 1}


async def test_a_model_captures_what_its_backend_serves(tmp_path):
    model = gavel.TrainableModel(name="desk", project="captures", base_model=EMBEDDED_POLICY)
    async with gavel.LocalBackend(tmp_path, slots=4, max_context=256) as backend:
        await model.register(backend)
        async with (
            model.capture() as capture,
            AsyncOpenAI(base_url=capture.base_url, api_key=capture.api_key) as client,
        ):
            await say(client, OPENING, model=model.get_inference_name())
    assert capture.trajectory.metrics == {"turns": 1}


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer {}"},
        {"Authorization": "bearer {}"},
        {"Authorization": "{}"},
        {"x-api-key": "{}"},
        {"api-key": "{}"},
        {"Authorization": "Bearer {}", "x-api-key": "another"},
        {"Authorization": "Bearer another", "api-key": "{}"},
    ],
    ids=str,
)
async def test_the_key_is_found_wherever_a_client_puts_it(server, owner, headers):
    async with Capture(owner) as capture, httpx.AsyncClient(trust_env=False) as plain:
        given = {name: value.format(capture.api_key) for name, value in headers.items()}
        body = {"model": "desk", "messages": OPENING, "max_tokens": 2}
        url = f"{server.base_url}/chat/completions"
        assert (await plain.post(url, json=body, headers=given, timeout=HANG_SECONDS)).status_code == 200
    assert capture.trajectory.metrics["turns"] == 1
