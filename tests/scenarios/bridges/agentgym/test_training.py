"""A policy learns over the wire what it learns in process: the same rewards from the same seeds."""

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.scenarios.library.returns_desk import scenario as returns_desk
from tests.forked import gavel
from tests.scenarios.bridges.served_scenario import served

SHORT = (
    "--model embedded/returns-desk --judge stand-in --steps 2 --tasks 2 --group-size 4 --evaluation-tasks 4 --seed 3"
)


def trained(folder: Path, scenario: str, name: str) -> list[dict[str, Any]]:
    """Rewards and success of each step of a run, and of its evaluations."""
    done = gavel("train", scenario, *SHORT.split(), "--name", name, cwd=folder)
    assert done.returncode == 0, done.stderr
    (metrics,) = folder.glob(f"runs/returns_desk/{name}/metrics.jsonl")
    rows = map(json.loads, metrics.read_text().splitlines())
    return [
        {
            key: value
            for key, value in row.items()
            if key.endswith(("reward", "success", "score")) or key in ("step", "split")
        }
        for row in rows
        if row["split"] in ("train", "held_out")
    ]


@pytest.mark.slow
def test_two_steps_over_the_wire_have_the_rewards_of_two_steps_in_process(tmp_path: Path) -> None:
    with served(returns_desk) as url:
        there = trained(tmp_path, f"agentgym:{url}", "wire")
    here = trained(tmp_path, "returns_desk", "here")
    assert len(here) == len(there) == 4
    for mine, theirs in zip(here, there, strict=True):
        assert {key: theirs[key] for key in mine} == mine
    assert any("success" in row for row in here)
