"""`gavel demo`: the main job, small enough for a laptop."""

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gavel.cli.execution import RESUME, need_training, run_to_end
from gavel.cli.lazy import single_command
from gavel.cli.model_options import Flag, with_options
from gavel.cli.run_options import run_config
from gavel.trainer.run_config import RunConfig

STEPS = 30
_FLAGS = [
    Flag("judge.models", "--judge"),
    Flag("judge.cassette", "--cassette"),
    Flag("loop.steps", "--steps", STEPS),
    Flag("loop.seed", "--seed"),
]


def demo(
    values: Mapping[str, Any],
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of continuing an earlier run.")] = False,
) -> None:
    """Train a tiny agent on this machine: no GPU, no key, a few minutes."""
    started = time.monotonic()
    need_training("gavel demo")
    config = run_config("returns_desk", {**values, "steps": values["steps"] or STEPS}, flags=_FLAGS)
    from gavel.cli.demo_session import DemoSettings, run_demo

    settings = DemoSettings(
        seed=config.loop.seed,
        judge=str(config.judge.models),
        steps=config.loop.steps,
        fresh=fresh,
        cassette=config.judge.cassette,
    )
    run_to_end(run_demo(settings, started), RESUME)


app = single_command(with_options(demo, RunConfig, _FLAGS))
