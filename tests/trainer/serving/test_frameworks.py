"""Agents of released frameworks, given the policy as docs/capture.md shows it, captured and trained."""

import asyncio
import contextlib
import importlib.util
import inspect
import json
import os
import re
import sys
import sysconfig
import tempfile
from asyncio.subprocess import DEVNULL
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import httpx
import litellm
import pytest
from openai import AsyncOpenAI

import gavel
from gavel.scenarios.library.returns_desk import scenario
from gavel.trainer.data.training_batch import mismatches
from gavel.trainer.embedded import EMBEDDED_POLICY

PAGE = Path(__file__).parents[3] / "docs" / "capture.md"
QUESTION = "Hello, I would like to return order 1001 for a refund."
EPISODES = 8
pytestmark = pytest.mark.slow


SCHEMA = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
TOOL = {"name": "refund", "description": "Pay the money back.", "parameters": SCHEMA}
DESK_TASK = """
import verifiers.v1 as vf


class DeskTools(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    def refund(self, order_id: str) -> str:
        \"\"\"Pay the money back.\"\"\"
        return f"refunded {order_id}"


class DeskTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [DeskTools(vf.ToolsetConfig())]


if __name__ == "__main__":
    DeskTools.run()
"""


def refund(order_id: str) -> str:
    """Pay the money back.

    Args:
        order_id: Number of the order.
    """
    return f"refunded {order_id}"


def refunded(arguments: str) -> str:
    return refund(str(json.loads(arguments).get("order_id")))


def served(framework: str, capture: Any, model: str, **names: Any) -> Any:
    """The policy as the page gives it to a framework."""
    (shown,) = re.findall(rf"^\| {framework} \| `(.*)` \|$", PAGE.read_text(), re.MULTILINE)
    return eval(shown, {"capture": capture, "model": model, **names})


async def langgraph_agent(capture, model, question):
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    chat = served("LangGraph", capture, model, ChatOpenAI=ChatOpenAI)
    await create_agent(chat, [refund], system_prompt=scenario.system).ainvoke({"messages": [("user", question)]})


async def openai_agents_agent(capture, model, question):
    from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, function_tool

    names = {"AsyncOpenAI": AsyncOpenAI, "OpenAIResponsesModel": OpenAIResponsesModel}
    policy = served("OpenAI Agents SDK", capture, model, **names)
    agent = Agent(name="desk", instructions=scenario.system, tools=[function_tool(refund)], model=policy)
    run = Runner.run_streamed(agent, question, run_config=RunConfig(tracing_disabled=True))
    async for _ in run.stream_events():
        pass


async def pydantic_agent(capture, model, question):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    names = {"AsyncOpenAI": AsyncOpenAI, "OpenAIChatModel": OpenAIChatModel, "OpenAIProvider": OpenAIProvider}
    policy = served("pydantic-ai", capture, model, **names)
    await Agent(policy, system_prompt=scenario.system, tools=[refund]).run(question)


async def smolagents_agent(capture, model, question, kind="ToolCallingAgent"):
    import smolagents

    policy = served("smolagents", capture, model, OpenAIModel=smolagents.OpenAIModel)
    tools = [smolagents.tool(refund)]
    agent = getattr(smolagents, kind)(tools=tools, model=policy, max_steps=2, verbosity_level=0)
    await asyncio.to_thread(agent.run, question)


code_agent = partial(smolagents_agent, kind="CodeAgent")
REWRITE = {smolagents_agent: "ToolCallingAgent", code_agent: "CodeAgent"}
"""The agents that rewrite their conversations, of which each version is a history of its own."""


async def anthropic_agent(capture, model, question):
    tool = {"name": "refund", "description": "Pay the money back.", "input_schema": SCHEMA}
    messages: list = [{"role": "user", "content": question}]
    async with served("Anthropic's SDK", capture, model, AsyncAnthropic=anthropic.AsyncAnthropic) as client:
        for _ in range(4):
            asked = {"model": model, "system": scenario.system, "tools": [tool], "messages": messages}
            async with client.messages.stream(max_tokens=256, **asked) as stream:
                reply = await stream.get_final_message()
            uses = [block for block in reply.content if block.type == "tool_use"]
            if not uses:
                return
            results = [
                {"type": "tool_result", "tool_use_id": use.id, "content": refund(str(use.input.get("order_id")))}
                for use in uses
            ]
            messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]


async def litellm_agent(capture, model, question):
    complete = served("LiteLLM", capture, model, litellm=litellm, partial=partial)
    messages: list = [{"role": "system", "content": scenario.system}, {"role": "user", "content": question}]
    for _ in range(4):
        chunks = await complete(messages=messages, tools=[{"type": "function", "function": TOOL}], stream=True)
        whole: Any = litellm.stream_chunk_builder([chunk async for chunk in chunks])
        reply = whole.choices[0].message
        messages.append(reply.model_dump())
        if not reply.tool_calls:
            return
        for call in reply.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": refunded(call.function.arguments)})


async def http_agent(capture, model, question):
    items: list = [{"role": "user", "content": question}]
    body = {"model": model, "instructions": scenario.system, "tools": [{"type": "function", **TOOL}]}
    async with served("httpx", capture, model, httpx=httpx) as client:
        for _ in range(4):
            output = (await client.post("/responses", json=body | {"input": items})).json()["output"]
            calls = [item for item in output if item["type"] == "function_call"]
            if not calls:
                return
            results = {call["call_id"]: refunded(call["arguments"]) for call in calls}
            items += output
            items += [{"type": "function_call_output", "call_id": own, "output": said} for own, said in results.items()]


async def command_line_agent(capture, model, question):
    policy = {"model_id": model, "model_name": model, "api_base": capture.base_url, "api_key_name": "capture"}
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/extra-openai-models.yaml", "w") as file:  # noqa: ASYNC230
            json.dump([policy | {"supports_tools": True}], file)
        command = ["-m", "llm", "--model", model, "--system", scenario.system]
        command += ["--functions", inspect.getsource(refund), "--key", capture.api_key, question]
        environment = os.environ | capture.environment | {"LLM_USER_PATH": folder, "LLM_LOAD_PLUGINS": ""}
        process = await asyncio.create_subprocess_exec(sys.executable, *command, env=environment, stdin=DEVNULL)
        await process.wait()


async def verifiers_agent(capture, model, question):
    import desk_task
    import verifiers.v1 as vf

    settings = served("verifiers' `AgentConfig`", capture, model)
    settings |= {"runtime": {"type": "subprocess"}, "max_turns": 4}
    settings["client"]["api_key_var"] = variable = f"KEY_{capture.api_key}"
    os.environ[variable] = capture.api_key
    task = desk_task.DeskTask(vf.TaskData(prompt=question, system_prompt=scenario.system), vf.TaskConfig())
    try:
        await vf.Agent(vf.AgentConfig.model_validate(settings)).run(task)
    finally:
        del os.environ[variable]


@pytest.mark.parametrize(
    ("run_agent", "needs"),
    [
        pytest.param(langgraph_agent, "langchain", marks=pytest.mark.frameworks),
        pytest.param(openai_agents_agent, "agents", marks=pytest.mark.frameworks),
        pytest.param(pydantic_agent, "pydantic_ai", marks=pytest.mark.frameworks),
        pytest.param(smolagents_agent, "smolagents", marks=pytest.mark.frameworks),
        pytest.param(code_agent, "smolagents", marks=pytest.mark.frameworks, id="code_agent"),
        pytest.param(command_line_agent, "llm", marks=pytest.mark.frameworks),
        pytest.param(verifiers_agent, "verifiers", marks=pytest.mark.frameworks),
        (anthropic_agent, "anthropic"),
        (litellm_agent, "litellm"),
        (http_agent, "httpx"),
    ],
)
async def test_every_token_that_an_agent_sampled_is_trained_once(run_agent, needs, tmp_path, monkeypatch, policy):
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"make test-frameworks installs {needs}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PATH", os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]))  # uv's
    monkeypatch.setenv("UV_SYSTEM_CERTS", "true")
    (tmp_path / "desk_task.py").write_text(DESK_TASK)
    if run_agent in REWRITE:  # its own instructions are longer than what the tiny model was taught
        monkeypatch.setattr(f"smolagents.{REWRITE[run_agent]}.initialize_system_prompt", lambda agent: scenario.system)
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
    if run_agent not in REWRITE:
        assert all(turn.continues_sampled for turn in later)
    assert {kind for trajectory in trajectories for kind in mismatches(trajectory, policy.decode)} <= {"template"}
    assert result.metrics["trajectories_trained"] == EPISODES
    assert result.metrics["tokens_trained"] == sum(len(turn.token_ids) for turns in choices for turn in turns)
    assert not [name for name in result.metrics if name.startswith("left_out/")]
