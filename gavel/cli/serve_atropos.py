"""`gavel serve-atropos`: Atropos' trajectory API in front of our learner, or for another trainer."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gavel.base.extras import need_extra
from gavel.cli.heartbeat import waiting_for
from gavel.cli.interrupts import RESUME, run_interruptibly, run_to_end
from gavel.cli.lazy_commands import single_command
from gavel.cli.model_options import Flag, with_options
from gavel.cli.run_options import (
    JUDGE_FLAGS,
    LORA_FLAGS,
    MEMORY_FLAGS,
    MODEL_FLAGS,
    START_FLAG,
    Assignments,
    announce_stand_in,
    run_config,
)
from gavel.cli.settings import STAND_IN
from gavel.cli.terminal import TRAINER
from gavel.judge.offline.stand_in import check_readable
from gavel.llm.providers import model_id
from gavel.scenarios.truth import Truth
from gavel.trainer.run_config import RunConfig

FLAGS = [
    *MODEL_FLAGS,
    START_FLAG,
    *LORA_FLAGS,
    *(replace(flag, path=f"judge.{flag.path}") for flag in JUDGE_FLAGS),
    Flag("loop.steps", "--steps"),
    Flag("train.learning_rate", "--learning-rate", "1e-5; 2e-3 for an embedded model"),
    Flag("train.loss.kind", "--loss", "grpo"),
    Flag("train.advantage", "--advantage"),
    Flag("train.optimizer", "--optimizer"),
    Flag("train.beta", "--beta"),
    *MEMORY_FLAGS,
    Flag("backend.engine", "--engine"),
    Flag("backend.max_context", "--max-context"),
    Flag("backend.slots", "--slots"),
    Flag("backend.tracker", "--tracker"),
]
KEY_HELP = "Environments show the key in GAVEL_ATROPOS_KEY; without one the server answers this machine alone."


def serve_atropos(
    values: Mapping[str, Any],
    host: Annotated[str, typer.Option(help=f"Address to listen on. {KEY_HELP}")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API; 0 takes a free one.")] = 8000,
    policy_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the policy's OpenAI-compatible endpoint; 0 takes a free one.")
    ] = 8001,
    project: Annotated[str, typer.Option(help="Under which the run is kept.")] = "atropos",
    batch_size: Annotated[int, typer.Option(min=2, help="Sequences of a training step, at least.")] = 64,
    wait_minutes: Annotated[
        float, typer.Option(min=0.01, help="End with an error when no group came for so long.")
    ] = 60.0,
    data: Annotated[
        Path, typer.Option(help="Without --model: the directory in which groups are kept for another trainer.")
    ] = Path("atropos-data"),
    max_waiting: Annotated[int, typer.Option(min=1, help="Groups that may wait; more are refused with 503.")] = 4096,
    max_body_mb: Annotated[int, typer.Option(min=1, help="Of a request, unpacked.")] = 256,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of continuing an earlier run.")] = False,
    assignments: Assignments = None,
) -> None:
    """Serve Atropos' trajectory API: to train here on what its environments send, or to hand it to another trainer.

    With --model the groups train that model, whose policy environments sample at the address that is printed; --judge
    scores them anew. Without --model another trainer registers and reads /batch. A group is on the disk before it is
    acknowledged, so a server that was killed goes on with the same command, and trains each group once.
    """
    import os

    from gavel.integrations.atropos.server import KEY_VARIABLE

    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    if values["model"] is None:
        _check_unused(values, fresh)
        need_extra("service", "gavel serve-atropos")
        from gavel.cli.serve_atropos_session import serve_queue

        run_to_end(serve_queue(data, host, port, key, max_waiting=max_waiting, most_bytes=max_body_mb << 20))
        return
    need_extra("train", "gavel serve-atropos --model")
    given = run_config(project, values, assignments, flags=FLAGS)
    config = given.resolved()
    judge = None
    if values["judge"] is not None or values["rubric"] is not None:
        judge = config.judge.build()
        announce_stand_in(judge.names)
        if model_id(STAND_IN) in judge.names:
            check_readable(judge.rubric, [Truth()])
        run_interruptibly(judge.probe())
    with waiting_for(TRAINER):
        from gavel.cli.serve_atropos_session import ServedQueue, serve_learner

    queue = ServedQueue(host, port, policy_port, key, batch_size, max_waiting, max_body_mb << 20, 60 * wait_minutes)
    run_to_end(serve_learner(config, project, queue, judge, fresh=fresh), RESUME)


def _check_unused(values: Mapping[str, Any], fresh: bool) -> None:
    """Raises for options that only a learner reads."""
    unused = [flag.name for flag in FLAGS if values.get(flag.key) not in (None, [])] + ["--fresh"] * fresh
    if unused:
        raise typer.BadParameter(f"{unused[0]} is of the learner, which --model names", param_hint=unused[0])


app = single_command(with_options(serve_atropos, RunConfig, FLAGS))
