"""Time to the first token of a streamed chat completion: the endpoint over vLLM against the same vLLM's own API.

    OMP_NUM_THREADS=1 GAVEL_VLLM_PYTHON=.venvs/vllm/bin/python python benchmarks/first_token.py --json

One vLLM (started here, on the CPU) with the embedded policy and an adapter serves both sides. Every request has a
conversation of its own, with a number at its beginning, so that no prefix cache helps. Conversations are of one length,
and the sides take turns. A first token is the first chunk that carries token ids. Exits with 1 when the ratio of the
medians misses its bar.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from openai import AsyncOpenAI, DefaultAioHttpClient

from gavel.trainer.config import LoraSettings, VllmSettings
from gavel.trainer.embedded import EMBEDDED_PATH, EMBEDDED_POLICY
from gavel.trainer.engines.vllm import VllmEngine
from gavel.trainer.engines.vllm_launch import Served, open_vllm_engine
from gavel.trainer.policy.policy import Policy
from gavel.trainer.serving.openai_server import EndpointServer

RATIO_BAR = 1.2
CONTEXT, REPLY_TOKENS = 2048, 32
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
"""For vLLM's own route: the embedded policy comes without a template."""
SIDES = ("endpoint", "vllm")


@dataclass(slots=True)
class Times:
    """Of one side, in seconds."""

    first: list[float] = field(default_factory=list[float])
    whole: list[float] = field(default_factory=list[float])


def main() -> int:
    options = argparse.ArgumentParser(description="Time to the first token: the endpoint against vLLM.")
    options.add_argument("--requests", type=int, default=60, help="of each side")
    options.add_argument("--at-once", type=int, default=1, help="requests in flight")
    options.add_argument("--words", type=int, default=120, help="of a conversation")
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    policy = Policy(EMBEDDED_POLICY, LoraSettings())
    served = Served(str(EMBEDDED_PATH), torch.float32, "cpu", policy.lora.rank, 32, CONTEXT, versions=1)
    with tempfile.TemporaryDirectory() as directory:
        template = Path(directory, "chatml.jinja")
        template.write_text(CHATML)
        settings = VllmSettings(arguments=("--chat-template", str(template)))
        engine = open_vllm_engine(settings, served, Path(directory))
        try:
            engine.publish(policy, 0)
            found = asyncio.run(_measured(policy, engine, asked.requests, asked.at_once, asked.words))
        finally:
            engine.close()
    ratio = found["endpoint"]["first_ms"] / found["vllm"]["first_ms"]
    report = {**found, "ratio": round(ratio, 3), "bar": RATIO_BAR, "load": os.getloadavg()[0]}
    print(json.dumps(report, indent=None if asked.json else 2))
    return 0 if ratio <= RATIO_BAR else 1


async def _measured(
    policy: Policy, engine: VllmEngine, requests: int, at_once: int, words: int
) -> dict[str, dict[str, float]]:
    server = EndpointServer(engine, policy, model="desk")
    adapter = engine._published[-1].name
    named = {"endpoint": (server.base_url, "desk"), "vllm": (f"{engine._url}/v1", adapter)}
    times = {side: Times() for side in SIDES}
    try:
        for number in range(-6, requests):  # the first ones warm both sides up
            for side in SIDES if number % 2 else reversed(SIDES):
                url, model = named[side]
                async with _client(url) as client:
                    work = [_ask(client, model, f"{number}.{at}", words) for at in range(at_once)]
                    found = await asyncio.gather(*work)
                if number >= 0:
                    times[side].first += [first for first, _ in found]
                    times[side].whole += [whole for _, whole in found]
    finally:
        server.close()
    return {side: _row(each) for side, each in times.items()}


async def _ask(client: AsyncOpenAI, model: str, number: str, words: int) -> tuple[float, float]:
    text = f"{number} " + "please look up the order and send a refund " * (words // 9)
    await client.models.list()  # the connection is open, as a running agent's is
    started, first = time.perf_counter(), None
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": text}],
        max_tokens=REPLY_TOKENS,
        temperature=1,
        seed=1,
        logprobs=True,
        stream=True,
        extra_body={"return_token_ids": True},
    )
    async for chunk in stream:
        if first is None and chunk.choices and _token_ids(chunk.choices[0]):
            first = time.perf_counter() - started
    assert first is not None, "a stream without a token"
    return first, time.perf_counter() - started


def _token_ids(choice) -> Sequence[int]:  # type: ignore[no-untyped-def]
    """vLLM has them in the choice, the endpoint in its delta."""
    return (choice.model_extra or {}).get("token_ids") or (choice.delta.model_extra or {}).get("token_ids") or ()


def _client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key="none", max_retries=0, http_client=DefaultAioHttpClient(trust_env=False))


def _row(times: Times) -> dict[str, float]:
    ordered = sorted(times.first)
    return {
        "first_ms": round(median(ordered) * 1000, 2),
        "first_p90_ms": round(ordered[int(0.9 * len(ordered))] * 1000, 2),
        "whole_ms": round(median(times.whole) * 1000, 2),
    }


if __name__ == "__main__":
    sys.exit(main())
