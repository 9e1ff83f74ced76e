"""Throughput of the judge against bare asyncio clients with the same prompts, loopback server and concurrency.

    python benchmarks/judge_throughput.py --groups 500 --rounds 2 --concurrency 64 --seconds 1.0

The server is a separate process and answers every prompt with a valid verdict after `--seconds`. The bare clients are
OpenAI's and LiteLLM behind a semaphore; they do not parse the reply. The judge goes over the direct wire and over
LiteLLM; "client" is `Client.ask` alone over either. All take turns, and the best round of each counts.
Peak memory is that of this process, groups included.
"""

import argparse
import asyncio
import json
import math
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat.chat_completion import Choice

from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.llm.client import Client
from gavel.llm.completion import DIRECT_WIRE
from gavel.llm.providers import load_litellm
from gavel.llm.rate_limits import Limits
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

SERVER = r"""
import asyncio, json, re, socket, sys
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def chat(request):
    body = await request.json()
    labels = re.findall(r"^¦\w+ trajectory (\w+)$", body["messages"][1]["content"], re.MULTILINE)
    verdict = {"scores": [{"trajectory_id": label, "explanation": "so so", "score": 0.5} for label in labels]}
    await asyncio.sleep(float(sys.argv[2]))
    message = {"role": "assistant", "content": json.dumps(verdict)}
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    choices = [{"index": 0, "finish_reason": "stop", "message": message}]
    return JSONResponse({"id": "1", "object": "chat.completion", "created": 1, "model": "judge",
                         "choices": choices, "usage": usage})

app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
uvicorn.Server(uvicorn.Config(app, log_level="error")).run([socket.socket(fileno=int(sys.argv[1]))])
"""


def groups(count: int, size: int) -> list[TrajectoryGroup]:
    def one(number: int, member: int) -> Trajectory:
        answer = {"role": "assistant", "content": f"Answer {member} to {number}. " + "Because of this and that. " * 20}
        choice = Choice.model_validate({"index": 0, "finish_reason": "stop", "message": answer})
        return Trajectory(messages_and_choices=[{"role": "user", "content": f"Question {number}?"}, choice])

    return [TrajectoryGroup(one(number, member) for member in range(size)) for number in range(count)]


async def prompts_of(waiting: list[TrajectoryGroup]) -> list[Any]:
    """(messages, schema) of every call that the judge would make."""
    seen: list[Any] = []

    async def write_down(messages: list[Any], schema: dict[str, Any]) -> str:
        seen.append((messages, schema))
        return json.dumps(dict.fromkeys(re.findall(r"^¦\w+ trajectory (\w+)$", messages[1]["content"], re.M), 0.5))

    judge = Judge(write_down, orders=1)
    for group in waiting:
        await judge.score(group)
    return seen


async def bare(prompts: list[Any], url: str, concurrency: int) -> None:
    slots = asyncio.Semaphore(concurrency)

    async def ask(client: AsyncOpenAI, messages: list[Any], schema: dict[str, Any]) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "scores", "schema": schema, "strict": True}}
        async with slots:
            await client.chat.completions.create(model="judge", messages=messages, response_format=form)  # type: ignore[call-overload]

    # Closed here: of a client that is collected as garbage, asyncio closes the sockets first. The client's own end then
    # stops the loop from watching their descriptors, which by then belong to the next connections.
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client, asyncio.TaskGroup() as tasks:
        for messages, schema in prompts:
            tasks.create_task(ask(client, messages, schema))


async def bare_litellm(prompts: list[Any], url: str, concurrency: int) -> None:
    litellm, slots = load_litellm(), asyncio.Semaphore(concurrency)
    params = {"api_base": url, "api_key": "none", "max_retries": 0, "num_retries": 0}

    async def ask(messages: list[Any], schema: dict[str, Any]) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "scores", "schema": schema, "strict": True}}
        async with slots:
            await litellm.acompletion(model="openai/judge", messages=messages, response_format=form, **params)

    async with asyncio.TaskGroup() as tasks:
        for messages, schema in prompts:
            tasks.create_task(ask(messages, schema))


async def asked(prompts: list[Any], url: str, concurrency: int, *, direct: bool) -> None:
    os.environ[DIRECT_WIRE] = str(int(direct))
    client = Client("openai/judge", {"api_base": url, "api_key": "none"}, Limits(concurrency))
    async with asyncio.TaskGroup() as tasks:
        for messages, schema in prompts:
            tasks.create_task(client.ask(messages, schema))


async def judged(
    waiting: list[TrajectoryGroup], url: str, concurrency: int, cassette: Path | None, *, direct: bool = True
) -> None:
    os.environ[DIRECT_WIRE] = str(int(direct))
    juror = Juror("openai/judge", params={"api_base": url, "api_key": "none"})
    judge = Judge(juror, orders=1, concurrency=concurrency, cassette=cassette)
    done = await asyncio.gather(*(judge.score(group) for group in waiting))
    assert all(group.judgement and group.judgement.status == "scored" for group in done)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def server(seconds: float) -> Iterator[str]:
    """Address of a judge model that answers after `seconds`."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        number = listening.fileno()
        process = subprocess.Popen([sys.executable, "-c", SERVER, str(number), str(seconds)], pass_fds=[number])
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            process.terminate()
            process.wait()


async def measure(url: str, count: int, size: int, concurrency: int, rounds: int) -> None:
    waiting = groups(count, size)
    prompts = await prompts_of(waiting)
    speed: dict[str, float] = {}
    cpu: dict[str, float] = {}

    async def timed(name: str, work: Any) -> None:
        started, used = time.monotonic(), time.process_time()
        await work
        per_second = count / (time.monotonic() - started)
        milliseconds = (time.process_time() - used) / count * 1e3
        speed[name], cpu[name] = max(speed.get(name, 0.0), per_second), min(cpu.get(name, math.inf), milliseconds)
        print(f"{name:24} {per_second:7.1f} groups/s  {milliseconds:6.2f} CPU ms/group  peak {peak_mib():.0f} MiB")

    with tempfile.TemporaryDirectory() as directory:
        await judged(groups(concurrency, size), url, concurrency, None)  # loads LiteLLM, wakes the server
        print(f"{'before':24} peak {peak_mib():.0f} MiB")
        for number in range(rounds):
            cassette = Path(directory, f"{number}.sqlite")
            await timed("OpenAI client", bare(prompts, url, concurrency))
            await timed("LiteLLM", bare_litellm(prompts, url, concurrency))
            await timed("client, LiteLLM", asked(prompts, url, concurrency, direct=False))
            await timed("client", asked(prompts, url, concurrency, direct=True))
            await timed("judge, LiteLLM", judged(waiting, url, concurrency, None, direct=False))
            await timed("judge", judged(waiting, url, concurrency, None))
            await timed("judge, cassette", judged(waiting, url, concurrency, cassette))
            await timed("judge, all on cassette", judged(waiting, url, concurrency, cassette))
    for peer in ("OpenAI client", "LiteLLM"):
        print(
            f"judge / {peer} {speed['judge'] / speed[peer]:.3f}, with cassette "
            f"{speed['judge, cassette'] / speed[peer]:.3f}; CPU {cpu['judge'] / cpu[peer]:.2f} and "
            f"{cpu['judge, cassette'] / cpu[peer]:.2f} times"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--size", type=int, default=4, help="trajectories in a group")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1.0, help="latency of the server")
    given = parser.parse_args()
    with server(given.seconds) as url:
        asyncio.run(measure(url, given.groups, given.size, given.concurrency, given.rounds))


if __name__ == "__main__":
    main()
