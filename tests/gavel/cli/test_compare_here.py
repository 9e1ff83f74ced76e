"""A comparison over a Scenario that only this program has: trained here, and not twice."""

from pathlib import Path

import pytest

import gavel
from gavel.base.errors import GavelError
from gavel.cli.compare_session import compare
from gavel.scenarios.library.returns_desk import scenario as desk
from gavel.trainer.run_config import RunConfig


def own() -> gavel.Scenario:
    return gavel.Scenario(
        "own_desk",
        system=desk.system,
        tools=[tool.function for tool in desk.toolbox],
        tasks=desk.tasks("train")[:8],
        held_out=desk.tasks("held_out")[:4],
        max_turns=3,
        rubric=desk.rubric,
        success=lambda trajectory: len(trajectory.messages()) > 4,
    )


@pytest.mark.slow
async def test_a_scenario_of_the_program_is_compared_in_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loop = {"steps": 1, "tasks_per_step": 2, "group_size": 2, "final_tasks": 2, "max_tokens": 32}
    settings = RunConfig.model_validate({"scenario": "own_desk", "loop": loop})
    first = await compare(own(), rewards=["judge", "constant"], seeds=1, settings=settings)
    assert [arm.name for arm in first.arms] == ["judge", "constant"]
    assert all(arm.final.value is not None for arm in first.arms)
    page = tmp_path / "runs" / "compare" / "own_desk" / "report.html"
    runs = {file: file.stat().st_mtime_ns for file in page.parent.glob("*/metrics.jsonl")}
    assert len(runs) == 2
    await compare(own(), rewards=["judge", "constant"], seeds=1, settings=settings)
    assert {file: file.stat().st_mtime_ns for file in runs} == runs


async def test_runs_of_a_program_s_scenario_are_not_parallel() -> None:
    with pytest.raises(GavelError, match="one after another"):
        await compare(own(), parallel=2)
