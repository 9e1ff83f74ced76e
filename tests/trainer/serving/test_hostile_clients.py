"""64 agents at once that rewrite, edit, branch, cut and leave: what is trained was sampled, and what was sampled is
trained, or counted."""

import asyncio
import json
import random

import pytest

from gavel.trainer.data.token_sequences import sequences, turns_of
from gavel.trainer.engines.protocol import Sampled, SamplingRequest
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.serving.capture import Capture
from tests.limits import HANG_SECONDS
from tests.trainer.serving.served import QUESTION, SYSTEM, TOOLS, client_of, serving

pytestmark = pytest.mark.slow

OPENING = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
AGENTS = 64


class Watched:
    """Notes what an engine samples to its end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sampled: list[tuple[list[int], Sampled]] = []
        self.engine: TransformersEngine | None = None
        submit = TransformersEngine.submit

        def noting(engine: TransformersEngine, request: SamplingRequest):
            self.engine = engine
            future = submit(engine, request)
            future.add_done_callback(
                lambda done: done.cancelled() or self.sampled.append((list(request.prompt_ids), done.result()))
            )
            return future

        monkeypatch.setattr(TransformersEngine, "submit", noting)


class Agent:
    """Says what its seed makes it say."""

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
        stream = await self._client.chat.completions.create(
            model="desk",
            messages=messages,
            tools=TOOLS,
            temperature=1.5,
            max_tokens=self._rng.choice([3, 9, 30]),
            seed=self._rng.choice([None, 5, 6]),
            stream=manner != "whole",
        )
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
        if self._rng.random() < 0.3:
            reply["content"] = [{"type": "text", "text": reply["content"]}] if reply.get("content") else None
        elif self._rng.random() < 0.3:
            reply["content"] = self._rng.choice(["I said something else", reply["content"][:-1] + "é"])
        return reply


async def test_what_is_trained_was_sampled_and_what_was_sampled_is_trained_or_counted(policy, monkeypatch):
    watched = Watched(monkeypatch)

    async def episode(seed: int) -> Capture:
        async with Capture(owner) as capture:
            await Agent(owner.with_options(api_key=capture.api_key), seed).talk([*OPENING], 2)
        return capture

    with serving(policy) as server:
        async with client_of(server).with_options(timeout=HANG_SECONDS) as owner:
            captures = await asyncio.gather(*map(episode, range(AGENTS)))
        engine = watched.engine
        assert engine is not None
        async with asyncio.timeout(HANG_SECONDS):
            while engine._slots.busy.any() or engine._running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    known = {(tuple(prompt), tuple(each.token_ids), tuple(each.logprobs)) for prompt, each in watched.sampled}
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
    assert abandoned > 0
    assert captured <= len(watched.sampled) <= captured + abandoned
