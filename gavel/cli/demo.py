"""`gavel demo`: the main job, small enough for a laptop."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from gavel.cli.dry_run import print_run_estimate
from gavel.cli.interrupts import RESUME, run_to_end
from gavel.cli.lazy_commands import single_command
from gavel.cli.model_options import Flag, with_options
from gavel.cli.named_scenario import scenario_named
from gavel.cli.run_options import JUDGE_FLAGS, DryRun, run_config
from gavel.extras import need_extra
from gavel.trainer.run_config import RunConfig

STEPS = 30
_ROLLOUT_TOKENS = 200
_OF_THE_JUDGE = ("--judge", "--max-cost", "--max-judge-tokens", "--judge-concurrency", "--judge-param", "--cassette")
_FLAGS = [
    *(replace(flag, path=f"judge.{flag.path}") for flag in JUDGE_FLAGS if flag.name in _OF_THE_JUDGE),
    Flag("loop.steps", "--steps", STEPS),
    Flag("loop.seed", "--seed"),
]


def demo(
    values: Mapping[str, Any],
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of continuing an earlier run.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Train a tiny agent on this machine: no GPU, no key, a few minutes."""
    started = time.monotonic()
    config = run_config("returns_desk", {**values, "steps": values["steps"] or STEPS}, flags=_FLAGS)
    judge = config.resolved().judge
    if dry_run:
        rubric = scenario_named("returns_desk").rubric
        return print_run_estimate(judge.build(rubric), config.loop, {"Rollouts as the demo's are": _ROLLOUT_TOKENS})
    need_extra("train", "gavel demo")
    from gavel.cli.demo_session import DemoSettings, run_demo

    settings = DemoSettings(seed=config.loop.seed, judge=judge, steps=config.loop.steps, fresh=fresh)
    run_to_end(run_demo(settings, started), RESUME)


app = single_command(with_options(demo, RunConfig, _FLAGS))
