"""The processes of `service_load.py` on loopback: a stub judge, the service, and a bare route beside it.

    with stub(0.2) as judge, service(folder, judge, settings) as served, bare(judge) as other: ...

The stub scores each attempt by the number after "worth" in its text, so that what comes back can be checked. The bare
route makes the same two LiteLLM calls for a group as the service, and nothing else.
"""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STUB = r"""
import asyncio, json, re, sys
from collections import Counter
import uvicorn

PATTERN = re.compile(r"^¦\w+ trajectory (\w+)$", re.MULTILINE)
WORTH = re.compile(r"worth (\d+)")
asked = Counter()

def answer(body):
    text = json.loads(body)["messages"][-1]["content"]
    _, *parts = PATTERN.split(text)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    verdict = {"scores": [{"trajectory_id": label, "explanation": "so so", "score": int(WORTH.search(part)[1]) / 100}
                          for label, part in pairs]}
    asked[hash(text)] += 1
    message = {"role": "assistant", "content": json.dumps(verdict)}
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    choices = [{"index": 0, "finish_reason": "stop", "message": message}]
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "judge", "choices": choices, "usage": usage}

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    if scope["path"] == "/asked":
        found = {"questions": len(asked), "requests": asked.total()}
    else:
        found = answer(body)
        await asyncio.sleep(float(sys.argv[2]))
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(found).encode()})

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

uvicorn.run(app, fd=int(sys.argv[1]), log_level="error", http="httptools", access_log=False, timeout_keep_alive=600)
"""


@dataclass
class Server:
    """Processes that answer `POST /v1/score`, asked in turns."""

    name: str
    urls: list[str]
    processes: "list[subprocess.Popen[str]]"
    latencies: list[float] = field(default_factory=list[float])
    """Milliseconds of each group at half of the bare route's capacity."""
    rates: list[float] = field(default_factory=list[float])
    """Groups a second that were answered there."""
    saturated: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Groups a second, CPU milliseconds a group."""

    @property
    def cpu(self) -> float:
        """CPU seconds of its processes and theirs so far."""
        return sum(map(_cpu, self._all()))

    @property
    def peak(self) -> float:
        """Most MiB that one of the processes has held."""
        return max(_mebibytes(pid, "VmHWM") for pid in self._all())

    @property
    def memory(self) -> float:
        """MiB that the largest process holds now."""
        return max(_mebibytes(pid, "VmRSS") for pid in self._all())

    def _all(self) -> list[int]:
        found = [process.pid for process in self.processes]
        for pid in found:  # grows: children of children come last
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                found.extend(map(int, task.read_text().split()))
        return found


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _mebibytes(pid: int, name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
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
def _script(code: str, *arguments: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A server of these lines on a port of its own."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        number = listener.fileno()
        command = [sys.executable, "-c", code, str(number), *arguments]
        with process(command, pass_fds=[number]) as running:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", running


@contextmanager
def stub(seconds: float) -> Iterator[str]:
    """The address of a judge that answers after so long; `/asked` there counts what it was asked."""
    with _script(STUB, str(seconds)) as (url, _):
        yield url


@contextmanager
def bare(judge: str) -> Iterator[Server]:
    """The bare route."""
    with _script(BARE, f"{judge}/v1") as (url, running):
        yield Server("bare", [url], [running])


@contextmanager
def service(
    folder: Path,
    judge: str,
    *,
    concurrency: int,
    groups: int,
    database: str | None = None,
    services: int = 1,
    processes: int = 1,
    limits: Mapping[str, float] | None = None,
) -> Iterator[Server]:
    """`gavel serve`, so many times, each with so many processes on its port. `concurrency`: calls of each at once;
    `groups`: that each judges at once."""
    settings = folder / "gavel.toml"
    table = "".join(f"{name} = {value}\n" for name, value in {"concurrent_groups": groups, **(limits or {})}.items())
    settings.write_text(
        f'port = 0\nprocesses = {processes}\ndatabase = "{database or folder / "service.sqlite"}"\n\n'
        f"[limits]\n{table}\n[judge]\n"
        f'models = "openai/gpt-5-mini"\nconcurrency = {concurrency}\n'
        f'params = {{api_base = "{judge}/v1", api_key = "none"}}\n'
    )
    with ExitStack() as stack:
        urls, running = list[str](), list["subprocess.Popen[str]"]()
        for number in range(services):
            log = stack.enter_context((folder / f"service-{number}.log").open("w+"))
            command = [sys.executable, "-m", "gavel", "serve", "--config", str(settings)]
            one = stack.enter_context(process(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder))
            running.append(one)
            urls.append(_announced(one, Path(log.name)))
        yield Server("service", urls, running)


def _announced(running: "subprocess.Popen[str]", log: Path) -> str:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and running.poll() is None:
        if found := re.search(r"http://\S+", log.read_text()):
            return found[0]
        time.sleep(0.05)
    raise SystemExit(f"the service did not start: {log.read_text()}")


def worths(number: int, members: int) -> list[int]:
    """What the stub gives the members of a group, in hundredths; all different."""
    return random.Random(f"worth {number}").sample(range(100), members)


def group(number: int, members: int) -> list[dict[str, Any]]:
    """The members of one task: a question, a tool call with its result, and an answer of some hundred characters."""
    chance = random.Random(number)

    def member(index: int, worth: int) -> dict[str, Any]:
        words = " ".join(chance.choice(("because", "order", "policy", "window", "refund", "lamp")) for _ in range(60))
        call = {"id": "1", "type": "function", "function": {"name": "get_order", "arguments": f'{{"id": {number}}}'}}
        return {
            "id": f"m{index}",
            "messages": [
                {"role": "user", "content": f"I want my money back for order {number}."},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": '{"item": "lamp", "days": 9}'},
                {"role": "assistant", "content": f"{words}, worth {worth}."},
            ],
        }

    return [member(index, worth) for index, worth in enumerate(worths(number, members))]


def body(number: int, members: int) -> bytes:
    """The request for one group."""
    return json.dumps({"trajectories": group(number, members)}).encode()
