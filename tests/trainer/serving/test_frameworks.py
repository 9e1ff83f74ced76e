"""The examples of docs/capture.md: agents of released frameworks, captured and trained.

Frameworks that are not installed here are tested by `make test-frameworks`, in an environment of its own.
"""

import asyncio
import contextlib
import importlib.util
import linecache
import os
import re
import sysconfig
from pathlib import Path

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


def program(folder: Path, *headings: str):
    """What the Python programs under these headings define. One that names its file is written into the folder."""
    names: dict = {}
    for heading in headings:
        for code in re.findall(r"```python\n(.*?)```", section(heading), re.DOTALL):
            code = code.replace('"You run the returns desk."', repr(scenario.system))
            if file := re.match(r"# (\w+\.py)\n", code):
                (folder / file[1]).write_text(code)
                continue
            name = f"{PAGE}#{heading}"
            linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)  # smolagents reads it
            exec(compile(code, name, "exec"), names)
    return names["run_agent"]


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
        ("LiteLLM", "litellm"),
        ("Plain httpx", "httpx"),
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
    run_agent = program(tmp_path, "Frameworks", heading)
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
