"""A real language model from end to end: sampling, steps, publish, resume, demonstrations, merged export, demo."""

import json
import os
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import LoraSettings, TrainConfig
from gavel.trainer.embedded.small_model import SMALL_MODEL, SmallModelError, small_model_path
from gavel.trainer.model import TrainableModel
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import a_model, registered

pytestmark = [pytest.mark.real, pytest.mark.slow]

NATS = {"float32": 1e-3, "bfloat16": 0.75}
"""Largest difference of a log-prob of this model: a merged export and its policy."""
MEAN_NATS = {"float32": 1e-4, "bfloat16": 0.1}


@pytest.fixture(scope="module", autouse=True)
def source() -> Path:
    try:
        return small_model_path()
    except SmallModelError as error:
        pytest.skip(f"NO REAL MODEL, SO THIS TEST DID NOT RUN: {error}")


def running(runs: Path) -> AbstractAsyncContextManager[tuple[TrainableModel, LocalBackend]]:
    model = a_model("writer", "real", SMALL_MODEL, lora=LoraSettings(rank=8))
    return registered(runs, model, slots=8, max_context=128)


async def a_group(model: TrainableModel, count: int = 4) -> TrajectoryGroup:
    scenario = find_scenario("one_sentence")
    task = scenario.tasks("train")[0]
    group = await TrajectoryGroup(rollout(model, scenario, task, max_tokens=24, seed=n) for n in range(count))
    for trajectory in group:
        trajectory.reward = 1 / (1 + len(str(trajectory.messages()[-1]["content"])))
    return group


def sampled(trajectory: Trajectory) -> tuple[list[int], list[int], list[float]]:
    choice: Any = trajectory.messages_and_choices[-1]
    logprobs = (choice.model_extra or {}).get("token_logprobs")
    if logprobs is None:
        logprobs = [token.logprob for token in choice.logprobs.content]
    return choice.prompt_token_ids, choice.token_ids, logprobs


def difference(directory: Path, trajectories: list[Trajectory]) -> torch.Tensor:
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype="auto").eval()
    found: list[torch.Tensor] = []
    for prompt, said, logprobs in map(sampled, trajectories):
        ids = torch.tensor([[*prompt, *said]])
        with torch.inference_mode():
            logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
        plain = logits.log_softmax(-1).gather(-1, torch.tensor(said)[:, None])[:, 0]
        found.append((plain - torch.tensor(logprobs)).abs())
    return torch.cat(found)


async def test_it_samples_learns_publishes_resumes_and_is_exported(tmp_path: Path, source: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(source)
    async with running(tmp_path) as (model, _):
        group = await a_group(model)
        prompt, said, _ = sampled(group.trajectories[0])
        messages = group.trajectories[0].messages()[:-1]
        plain = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert prompt == plain
        assert "".join(tokenizer.decode(said, skip_special_tokens=True).split())
        assert difference(source, list(group)).max() < NATS["float32"]
        for _ in range(2):
            result = await model.train([await a_group(model)], TrainConfig(learning_rate=1e-3))
            assert result.trained
            assert result.metrics["publish_gap"] < 1e-3
        before = list(await a_group(model))
    async with running(tmp_path) as (again, _):
        assert await again.get_step() == 2
        after = list(await a_group(again))
        assert [sampled(one)[1] for one in after] == [sampled(other)[1] for other in before]
        assert difference(source, after).max() > NATS["float32"]  # it has learnt
        for dtype, bound in NATS.items():
            gaps = difference(await again.export("merged", dtype=dtype), after)
            print(f"{dtype}: mean {gaps.mean():.2g}, max {gaps.max():.2g} nats over {len(gaps)} tokens")
            assert gaps.max() < bound
            assert gaps.mean() < MEAN_NATS[dtype]
        assert (await again.train([await a_group(again)], TrainConfig(learning_rate=1e-3))).step == 3


def test_the_demo_leaves_its_figures_and_goes_on_where_it_was(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gavel", "demo", "--real", "--steps", "1"]
    environment = {**os.environ, "GAVEL_RUNS": str(tmp_path / "runs")}
    environment.pop("GAVEL_JUDGE_MODEL", None)
    told = []
    for _ in range(2):
        given = {"cwd": tmp_path, "env": environment, "text": True, "timeout": HANG_SECONDS}
        done = subprocess.run(command, capture_output=True, **given)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    assert "likelihood judge (the frozen base, a word count)" in told[0]
    assert "This run is finished" in told[1]
    (file,) = tmp_path.glob("runs/demo/*/summary.json")
    summary = json.loads(file.read_text())
    assert (summary["judge"], summary["groups"], summary["heldout_tasks"]) == ("likelihood", {"scored": 4}, 64)
    assert "The same task, before and after" in (file.parent / "report.html").read_text()
