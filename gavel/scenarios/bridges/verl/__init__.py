"""verl's data as a scenario: rows of a parquet file, a `compute_score` as hand reward, and tools of its YAML.

    gavel train "verl:train.parquet?held_out=test.parquet&reward=reward.py:compute_score" --model Qwen/Qwen3-4B
    scenario = verl("train.parquet?reward=verl.utils.reward_score:default_compute_score&tools=tools.yaml")

A row's `prompt` is the conversation as it stands, system messages and examples included. Its ground truth is told to
the judge as the reference, and never to the agent. verl itself is needed only by rewards and tools that import it.
"""

from collections.abc import Callable
from functools import partial

from gavel.scenarios.bridges.verl.address import parse
from gavel.scenarios.bridges.verl.compute_score import ComputeScore, load_compute_score
from gavel.scenarios.bridges.verl.dataset import read_tasks
from gavel.scenarios.bridges.verl.play import VerlRollout
from gavel.scenarios.bridges.verl.tools import VerlTools
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.trajectory import Trajectory


def scenario_at(address: str) -> Scenario:
    """The scenario of `verl:ADDRESS`. Raises `ScenarioError`."""
    return verl(address)


def verl(
    address: str,
    *,
    compute_score: Callable[..., object] | None = None,
    rubric: str | None = None,
) -> Scenario:
    """The scenario of a dataset of verl's. `address`: as after `verl:`, see `address.parse`.

    `compute_score`: in place of the address's `reward`. `rubric`: what good work is, for the judge.
    Raises `ScenarioError` for what cannot be read or imported.
    """
    parsed = parse(address)
    tasks = read_tasks(parsed.data, parsed.tasks, reference=parsed.reference)
    held_out = 0.2 if parsed.held_out is None else read_tasks(parsed.held_out, None, reference=parsed.reference)
    tools = None if parsed.tools is None else VerlTools(parsed.tools)
    score = None
    if compute_score is not None:
        score = ComputeScore(compute_score)
    elif parsed.reward is not None:
        score = load_compute_score(parsed.reward)
    return Scenario(
        parsed.name,
        tasks=tasks,
        held_out=held_out,
        rollout=VerlRollout(tools, parsed.turns).play,
        max_turns=parsed.turns,
        max_seconds=parsed.seconds,
        rubric=rubric,
        hand_reward=score,
        success=None if score is None or parsed.success is None else partial(_reaches, score, parsed.success),
    )


def _reaches(score: ComputeScore, threshold: float, trajectory: Trajectory) -> bool:
    return score(trajectory) >= threshold
