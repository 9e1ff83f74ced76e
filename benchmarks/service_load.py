"""The judge service under load, beside a bare FastAPI route that makes the same LiteLLM calls.

    python benchmarks/service_load.py --json
    python benchmarks/service_load.py --groups 2000 --clients 200 --database postgresql://localhost/gavel --processes 2

Four kinds of processes on loopback: a stub judge that answers after `--seconds`, the service (`gavel serve`), the bare
route, and this one, which sends the groups. First both are saturated by `--clients` clients, in turns: groups a second
and CPU milliseconds a group. Then both get half of the bare route's capacity, at even intervals: latency in
milliseconds. At the end every group must have been judged once. CPU time is that of the server's process alone.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import re
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

STUB = r"""
import asyncio, json, re, sys
import uvicorn

PATTERN = re.compile(r"^¦\w+ trajectory (\w+)$", re.MULTILINE)

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    labels = PATTERN.findall(json.loads(body)["messages"][-1]["content"])
    verdict = {"scores": [{"trajectory_id": label, "explanation": "so so", "score": 0.5} for label in labels]}
    await asyncio.sleep(float(sys.argv[2]))
    message = {"role": "assistant", "content": json.dumps(verdict)}
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    choices = [{"index": 0, "finish_reason": "stop", "message": message}]
    reply = json.dumps({"id": "1", "object": "chat.completion", "created": 1, "model": "judge",
                        "choices": choices, "usage": usage}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": reply})

uvicorn.run(app, fd=int(sys.argv[1]), log_level="error", lifespan="off", timeout_keep_alive=600)
"""

BARE = r"""
import asyncio, json, os, sys
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
import uvicorn
from fastapi import FastAPI

app = FastAPI()
base = sys.argv[2]
SYSTEM = "Score each trajectory from 0 to 1, relative to the others. " * 8
SCORE = {"type": "object", "properties": {"trajectory_id": {"type": "string"}, "explanation": {"type": "string"},
         "score": {"type": "number"}}, "required": ["trajectory_id", "explanation", "score"],
         "additionalProperties": False}
SCHEMA = {"type": "object", "properties": {"scores": {"type": "array", "items": SCORE}}, "required": ["scores"],
          "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA, "strict": True}}

async def ask(members):
    text = "\n".join(f"¦bare trajectory {number}\n{json.dumps(member)}" for number, member in members)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    reply = await litellm.acompletion(model="openai/gpt-5-mini", messages=messages, response_format=FORMAT, timeout=60,
                                      max_retries=0, num_retries=0, api_base=base, api_key="none")
    scores = json.loads(reply.choices[0].message.content)["scores"]
    return {int(one["trajectory_id"]): one["score"] for one in scores}

@app.post("/v1/score")
async def score(body: dict):
    members = list(enumerate(member["messages"] for member in body["trajectories"]))
    votes = await asyncio.gather(ask(members), ask(members[::-1]))
    scores = [sum(vote[number] for vote in votes) / 2 for number, _ in members]
    return {"id": "-", "scores": scores}

uvicorn.run(app, fd=int(sys.argv[1]), log_level="error", http="httptools", access_log=False)
"""


@dataclass
class Server:
    """Processes that answer `POST /v1/score`, asked in turns."""

    name: str
    urls: list[str]
    processes: "list[subprocess.Popen[str]]"
    latencies: list[float] = field(default_factory=list[float])
    saturated: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Groups a second, CPU milliseconds a group."""

    @property
    def cpu(self) -> float:
        """CPU seconds of its processes so far."""
        return sum(_cpu(process.pid) for process in self.processes)

    @property
    def memory(self) -> float:
        """Peak MiB of the largest process."""
        return max(_peak(process.pid) for process in self.processes)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


@contextmanager
def process(arguments: list[str], **options: Any) -> Iterator["subprocess.Popen[str]"]:
    running = subprocess.Popen(arguments, text=True, **options)
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(60)
        except subprocess.TimeoutExpired:
            running.kill()


@contextmanager
def script(code: str, *arguments: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A server of these lines on a port of its own."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        number = listener.fileno()
        command = [sys.executable, "-c", code, str(number), *arguments]
        with process(command, pass_fds=[number]) as running:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", running


@contextmanager
def service(folder: Path, stub: str, options: argparse.Namespace) -> Iterator[Server]:
    """`gavel serve`, in as many processes as asked for."""
    database = options.database or str(folder / "service.sqlite")
    judge = f'{{models = "openai/gpt-5-mini", params = {{api_base = "{stub}/v1", api_key = "none"}}, '
    judge += f"concurrency = {4 * options.clients}}}"
    settings = folder / "gavel.toml"
    limits = f"{{concurrent_groups = {2 * options.clients}}}"
    settings.write_text(f'port = 0\ndatabase = "{database}"\njudge = {judge}\nlimits = {limits}\n')
    with ExitStack() as stack:
        urls, processes = list[str](), list["subprocess.Popen[str]"]()
        for number in range(options.processes):
            log = (folder / f"service-{number}.log").open("w+")
            command = [sys.executable, "-m", "gavel", "serve", "--config", str(settings)]
            running = stack.enter_context(process(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder))
            processes.append(running)
            urls.append(_announced(running, Path(log.name)))
        yield Server("service", urls, processes)


def _announced(running: "subprocess.Popen[str]", log: Path) -> str:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and running.poll() is None:
        if found := re.search(r"http://\S+", log.read_text()):
            return found[0]
        time.sleep(0.05)
    raise SystemExit(f"the service did not start: {log.read_text()}")


def body(number: int, members: int) -> bytes:
    """A group of one task: a question, a tool call with its result, and an answer of some hundred characters."""
    chance = random.Random(number)

    def member(index: int) -> dict[str, Any]:
        words = " ".join(chance.choice(("because", "order", "policy", "window", "refund", "lamp")) for _ in range(60))
        call = {"id": "1", "type": "function", "function": {"name": "get_order", "arguments": f'{{"id": {number}}}'}}
        return {
            "id": f"m{index}",
            "messages": [
                {"role": "user", "content": f"I want my money back for order {number}."},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": '{"item": "lamp", "days": 9}'},
                {"role": "assistant", "content": f"{words} {index}."},
            ],
        }

    return json.dumps({"trajectories": [member(index) for index in range(members)]}).encode()


async def post(session: aiohttp.ClientSession, server: Server, content: bytes, turn: int) -> str:
    """The id of the judgement of one group, which must have scores."""
    url = f"{server.urls[turn % len(server.urls)]}/v1/score"
    async with session.post(url, data=content, headers={"Content-Type": "application/json"}) as answer:
        found = await answer.json()
        if answer.status != 200 or None in found["scores"]:
            raise SystemExit(f"{server.name}: {answer.status} {found}")
        return found["id"]


async def saturate(session: aiohttp.ClientSession, server: Server, contents: list[bytes], clients: int) -> list[str]:
    """All groups by so many clients, each with one request at a time."""
    ids: list[str] = []
    left = iter(enumerate(contents))

    async def client() -> None:
        for turn, content in left:
            ids.append(await post(session, server, content, turn))

    began, cpu = time.perf_counter(), server.cpu
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - began
    server.saturated.append((len(contents) / seconds, (server.cpu - cpu) / len(contents) * 1000))
    return ids


async def pace(session: aiohttp.ClientSession, server: Server, contents: list[bytes], rate: float) -> list[str]:
    """All groups at an even rate, whatever the answers take."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def one(number: int, content: bytes) -> str:
        due = began + number / rate
        await asyncio.sleep(max(due - loop.time(), 0))
        judgement = await post(session, server, content, number)
        server.latencies.append((loop.time() - due) * 1000)
        return judgement

    return list(await asyncio.gather(*(one(number, content) for number, content in enumerate(contents))))


async def measure(servers: list[Server], options: argparse.Namespace) -> list[str]:
    """The ids of all judgements of the service."""
    ids: list[str] = []
    number = 0

    def fresh(count: int) -> list[bytes]:
        nonlocal number
        number += count
        return [body(each, options.members) for each in range(number - count, number)]

    async def rounds(count: int, run: Callable[[Server, list[bytes]], Awaitable[list[str]]]) -> None:
        for _ in range(options.rounds):
            contents = fresh(max(count // options.rounds, 1))
            for server in servers:
                found = await run(server, contents)
                ids.extend(found if server.name == "service" else [])

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(600)) as session:
        for server in servers:
            found = await saturate(session, server, fresh(3 * options.clients // 2), options.clients)  # warm
            ids.extend(found if server.name == "service" else [])
            server.saturated.clear()
        await rounds(options.groups, lambda server, contents: saturate(session, server, contents, options.clients))
        capacity = statistics.mean(rate for rate, _ in servers[-1].saturated)
        await rounds(options.groups, lambda server, contents: pace(session, server, contents, capacity / 2))
        await _check(session, servers[0], ids)
    return ids


async def _check(session: aiohttp.ClientSession, server: Server, ids: list[str]) -> None:
    """None lost, none doubled: what was answered is what is on file."""
    stored, before = list[str](), ""
    while True:
        async with session.get(f"{server.urls[0]}/v1/judgements?limit=200{before}") as answer:
            page = await answer.json()
        stored += [one["id"] for one in page["judgements"] if one["status"] == "scored"]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    if len(set(ids)) < len(ids) or not set(ids) <= set(stored):
        raise SystemExit(f"{len(ids)} answers, {len(set(ids))} of them different, {len(stored)} on file")


def told(server: Server) -> dict[str, float]:
    quantiles = statistics.quantiles(server.latencies, n=100)
    return {
        "groups_per_second": round(statistics.mean(rate for rate, _ in server.saturated), 1),
        "cpu_ms_per_group": round(statistics.mean(cpu for _, cpu in server.saturated), 2),
        "p50_ms_at_half": round(quantiles[49], 1),
        "p99_ms_at_half": round(quantiles[98], 1),
        "peak_mib": round(server.memory, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=2000, help="of each of the two measurements")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.2, help="that the stub judge takes")
    parser.add_argument("--rounds", type=int, default=2, help="in which service and bare route take turns")
    parser.add_argument("--database", help="of the service; default: an SQLite file")
    parser.add_argument("--processes", type=int, default=1, help="of the service")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        script(STUB, str(options.seconds)) as (stub, _),
        service(Path(folder), stub, options) as served,
        script(BARE, f"{stub}/v1") as (url, running),
    ):
        servers = [served, Server("bare", [url], [running])]
        ids = asyncio.run(measure(servers, options))
        figures: dict[str, Any] = {server.name: told(server) for server in servers}
    own, bare = figures["service"], figures["bare"]
    figures |= {
        "p99_ratio": round(own["p99_ms_at_half"] / bare["p99_ms_at_half"], 2),
        "cpu_ratio": round(own["cpu_ms_per_group"] / bare["cpu_ms_per_group"], 2),
        "answered": len(ids),
        "settings": {k: v for k, v in vars(options).items() if k not in ("json", "database")},
        "database": "postgresql" if options.database else "sqlite",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "sender_cpu_seconds": round(resource.getrusage(resource.RUSAGE_SELF).ru_utime, 1),
    }
    print(json.dumps(figures, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
