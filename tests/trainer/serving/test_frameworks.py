"""The examples of docs/capture.md: agents of released frameworks, captured and trained.

Frameworks that are not installed here are tested by `make test-frameworks`, in an environment of its own.
"""

import asyncio
import contextlib
import importlib.util
import json
import linecache
import os
import re
import sysconfig
from pathlib import Path
from typing import Any

import httpx
import litellm
import pytest

import gavel
from gavel.scenarios.library.returns_desk import scenario
from gavel.trainer.data.training_batch import mismatches
from gavel.trainer.embedded import EMBEDDED_POLICY

PAGE = Path(__file__).parents[3] / "docs" / "capture.md"
QUESTION = "Hello, I would like to return order 1001 for a refund."
EPISODES = 8
REWRITE = {"smolagents": "ToolCallingAgent", "smolagents' CodeAgent": "CodeAgent"}
"""The agents that rewrite their conversations, of which each version is a history of its own."""

pytestmark = pytest.mark.slow


def section(heading: str) -> str:
    return re.split(r"\n##+ ", PAGE.read_text().partition(f"# {heading}\n")[2])[0]


def program(folder: Path, heading: str):
    """`run_agent` of the page. A program that names its file is written into the folder."""
    heading, _, agent = heading.partition("' ")
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", section("Frameworks") + section(heading), re.DOTALL):
        code = code.replace('"You run the returns desk."', repr(scenario.system))
        if agent:
            code = code.replace("ToolCallingAgent", agent)
        if file := re.match(r"# (\w+\.py)\n", code):
            (folder / file[1]).write_text(code)
            continue
        name = f"{PAGE}#{heading}#{len(linecache.cache)}"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)  # smolagents reads it
        exec(compile(code, name, "exec"), names)
    return names["run_agent"]


SCHEMA = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
TOOL = {"name": "refund", "description": "Pay the money back.", "parameters": SCHEMA}


def refund(arguments: str) -> str:
    return f"refunded {json.loads(arguments).get('order_id')}"


async def litellm_agent(capture, model, question):
    messages: list = [{"role": "system", "content": scenario.system}, {"role": "user", "content": question}]
    for _ in range(4):
        chunks = await litellm.acompletion(
            f"openai/{model}",
            messages=messages,
            tools=[{"type": "function", "function": TOOL}],
            base_url=capture.base_url,
            api_key=capture.api_key,
            stream=True,
        )
        reply: Any = litellm.stream_chunk_builder([chunk async for chunk in chunks])
        message = reply.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": refund(call.function.arguments)})


async def http_agent(capture, model, question):
    items: list = [{"role": "user", "content": question}]
    key = {"Authorization": f"Bearer {capture.api_key}"}
    body = {"model": model, "instructions": scenario.system, "tools": [{"type": "function", **TOOL}]}
    async with httpx.AsyncClient(base_url=capture.base_url, headers=key, timeout=600) as client:
        for _ in range(4):
            output = (await client.post("/responses", json=body | {"input": items})).json()["output"]
            calls = [item for item in output if item["type"] == "function_call"]
            if not calls:
                return
            results = {call["call_id"]: refund(call["arguments"]) for call in calls}
            items += output
            items += [{"type": "function_call_output", "call_id": own, "output": said} for own, said in results.items()]


@pytest.mark.parametrize(
    ("heading", "needs"),
    [
        pytest.param("LangGraph", "langchain", marks=pytest.mark.frameworks),
        pytest.param("OpenAI Agents SDK", "agents", marks=pytest.mark.frameworks),
        pytest.param("pydantic-ai", "pydantic_ai", marks=pytest.mark.frameworks),
        pytest.param("smolagents", "smolagents", marks=pytest.mark.frameworks),
        pytest.param("smolagents' CodeAgent", "smolagents", marks=pytest.mark.frameworks),
        pytest.param("A command-line agent", "llm", marks=pytest.mark.frameworks),
        pytest.param("verifiers", "verifiers", marks=pytest.mark.frameworks),
        ("Anthropic's SDK", "anthropic"),
        (litellm_agent, "litellm"),
        (http_agent, "httpx"),
    ],
)
async def test_every_token_that_an_agent_sampled_is_trained_once(heading, needs, tmp_path, monkeypatch, policy):
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"make test-frameworks installs {needs}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PATH", os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]))  # uv's
    monkeypatch.setenv("UV_SYSTEM_CERTS", "true")
    run_agent = program(tmp_path, heading) if isinstance(heading, str) else heading
    if heading in REWRITE:  # its own instructions are longer than what the tiny model was taught
        monkeypatch.setattr(f"smolagents.{REWRITE[heading]}.initialize_system_prompt", lambda agent: scenario.system)
    model = gavel.TrainableModel(name="desk", project="captures", base_model=EMBEDDED_POLICY)
    captures = []

    async def episode() -> None:
        captures.append(capture := model.capture())
        with contextlib.suppress(Exception):  # what a framework says of the nonsense that a tiny model samples
            async with capture:
                await run_agent(capture, model.get_inference_name(), QUESTION)

    async with gavel.LocalBackend(tmp_path / "runs", slots=EPISODES, max_context=8192) as backend:
        await model.register(backend)
        await asyncio.gather(*(episode() for _ in range(EPISODES)))
        trajectories = [capture.trajectory for capture in captures]
        for number, trajectory in enumerate(trajectories):
            trajectory.reward = number / EPISODES
        choices = [list(trajectory.choices()) for trajectory in trajectories]
        result = await model.train(gavel.TrajectoryGroup(trajectories))

    later = [turn for turns in choices for turn in turns[1:]]
    assert later, "some episode has a tool's result"
    if heading not in REWRITE:
        assert all(turn.continues_sampled for turn in later)
    assert {kind for trajectory in trajectories for kind in mismatches(trajectory, policy.decode)} <= {"template"}
    own = [turns for turns in choices if not any("shaped_by" in (turn.model_extra or {}) for turn in turns)]
    assert len(own) == EPISODES or heading == "smolagents"  # which demands a tool call of every turn
    assert result.metrics["trajectories_trained"] == len(own) > 1
    assert result.metrics["tokens_trained"] == sum(len(turn.token_ids) for turns in own for turn in turns)
    left_out = {name: count for name, count in result.metrics.items() if name.startswith("left_out/")}
    assert left_out == ({"left_out/shaped_sampling": EPISODES - len(own)} if len(own) < EPISODES else {})
