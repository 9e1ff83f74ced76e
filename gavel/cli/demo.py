"""`gavel demo`: the main job, small enough for a laptop."""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.cli.demo_jobs import DESKS, LIKELIHOOD, ONE_SENTENCE, RETURNS_DESK, DemoJob, DemoScenario
from gavel.cli.dry_run import print_run_estimate
from gavel.cli.heartbeat import waiting_for
from gavel.cli.interrupts import RESUME, run_to_end
from gavel.cli.lazy_commands import single_command
from gavel.cli.model_options import Flag, with_options
from gavel.cli.named_scenario import scenario_named
from gavel.cli.run_options import JUDGE_FLAGS, DryRun, run_config
from gavel.cli.settings import STAND_IN
from gavel.cli.terminal import TRAINER
from gavel.judge.config import JudgeConfig
from gavel.trainer.run_config import RunConfig

_OF_THE_JUDGE = ("--judge", "--max-cost", "--max-judge-tokens", "--judge-concurrency", "--judge-param", "--cassette")
DEMO_BACKENDS = ("local", "remote", "sky-local")
_FLAGS = [
    *(replace(flag, path=f"judge.{flag.path}") for flag in JUDGE_FLAGS if flag.name in _OF_THE_JUDGE),
    Flag(
        "loop.steps",
        "--steps",
        f"{RETURNS_DESK.steps}; with --real {ONE_SENTENCE.steps}; another number is another run",
    ),
    Flag("loop.seed", "--seed"),
]


def demo(
    values: Mapping[str, Any],
    scenario: Annotated[
        DemoScenario | None, typer.Argument(help="What a tiny policy learns. Default: returns_desk.")
    ] = None,
    real: Annotated[
        bool,
        typer.Option("--real", help="Train a small real language model on one_sentence (`make real` fetches it)."),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of continuing an earlier run.")] = False,
    backend: Annotated[
        str,
        typer.Option(
            help="local; remote: through a `gavel backend` started for it; sky-local: started as a cluster starts it."
        ),
    ] = "local",
    dry_run: DryRun = False,
) -> None:
    """Train a tiny agent on this machine: no GPU, no key, a few minutes."""
    started = time.monotonic()
    if backend not in DEMO_BACKENDS:
        raise typer.BadParameter(", ".join(DEMO_BACKENDS), param_hint="--backend")
    if real and scenario is not None:
        raise GavelError(
            f"--real is not for {scenario}: it trains on one_sentence.", f"Leave out {scenario} or --real."
        )
    job = ONE_SENTENCE if real else DESKS[scenario or "returns_desk"]
    config = run_config(job.scenario, {**values, "steps": values["steps"] or job.steps}, flags=_FLAGS)
    judge = _judge_of(job, config, values["judge"])
    if dry_run and judge.models == LIKELIHOOD:
        return typer.echo("The judge is the likelihood of the frozen base, on this machine: it costs nothing.")
    if dry_run:
        rubric = scenario_named(job.scenario).rubric
        loop = job.loop.model_copy(update={"steps": config.loop.steps})
        return print_run_estimate(judge.build(rubric), loop, {"Rollouts as the demo's are": job.rollout_tokens})
    need_extra("train", job.command)
    if job.threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(job.threads))  # read when torch is imported, here or in a child
    with waiting_for(TRAINER):
        from gavel.cli.demo_session import DemoSettings, run_demo

    settings = DemoSettings(
        job=job, seed=config.loop.seed, judge=judge, steps=config.loop.steps, fresh=fresh, backend=backend
    )
    run_to_end(run_demo(settings, started), RESUME)


def _judge_of(job: DemoJob, config: RunConfig, named: str | None) -> JudgeConfig:
    """The judge that was named, else the job's own. Raises `GavelError` for the stand-in where it has no rules."""
    judge = config.resolved().judge
    if job.judge == STAND_IN or judge.models != STAND_IN:
        return judge
    if named is not None:
        raise GavelError(
            f"the stand-in checks rules about tool calls, and the job {job.name!r} has none.",
            f"Leave --judge out ({job.judge} judges then), or name a judge model: --judge openai/gpt-5-mini.",
        )
    orders = {} if "orders" in judge.model_fields_set else {"orders": 1}  # it is no different in another order
    return judge.model_copy(update={"models": job.judge, **orders})


app = single_command(with_options(demo, RunConfig, _FLAGS))
