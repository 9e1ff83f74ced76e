"""`gavel serve-atropos`: Atropos' trajectory API in front of our learner, or for another trainer."""

import asyncio
import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.console import Console

from gavel.base.extras import need_extra
from gavel.base.text import counted
from gavel.cli.lazy_commands import single_command
from gavel.cli.options import (
    JUDGE_FLAGS,
    LORA_FLAGS,
    MEMORY_FLAGS,
    MODEL_FLAGS,
    START_FLAG,
    Assignments,
    Flag,
    announce_stand_in,
    run_config,
    with_options,
)
from gavel.cli.settings import STAND_IN
from gavel.cli.terminal import RESUME, run_interruptibly, run_to_end, say
from gavel.cli.training import opened_run, run_directory_of, trainable
from gavel.integrations.atropos.queue import GroupQueue, OwnTrainer, QueueState, TrainerRegistration
from gavel.integrations.atropos.server import KEY_VARIABLE, checked_listener, serve
from gavel.judge.judge import Judge
from gavel.judge.offline.stand_in import check_readable
from gavel.llm.providers import model_id
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.truth import Truth
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.loop.experiment import described_judge
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
    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    if values["model"] is None:
        unused = [flag.name for flag in FLAGS if values.get(flag.key) not in (None, [])] + ["--fresh"] * fresh
        if unused:
            raise typer.BadParameter(f"{unused[0]} is of the learner, which --model names", param_hint=unused[0])
        need_extra("service", "gavel serve-atropos")
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
    queue = ServedQueue(host, port, policy_port, key, batch_size, max_waiting, max_body_mb << 20, 60 * wait_minutes)
    run_to_end(serve_learner(config, project, queue, judge, fresh=fresh), RESUME)


_LINGER_SECONDS = 3.0
"""That the server still answers after the last step, so that environments hear that it is done."""
_CHECKPOINTS = 3
FILE = "queue.sqlite"


@dataclass(frozen=True, slots=True)
class ServedQueue:
    """Where the API listens, and its bounds."""

    host: str
    port: int
    policy_port: int
    key: str | None
    batch_size: int
    max_waiting: int
    most_bytes: int
    wait_seconds: float


async def serve_queue(data: Path, host: str, port: int, key: str | None, *, max_waiting: int, most_bytes: int) -> None:
    """Serves groups to another trainer until it is told to stop."""
    console = Console()
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(checked_listener(host, port, key)))
        queue = stack.enter_context(contextlib.closing(GroupQueue(data / FILE, most_groups=max_waiting)))

        def announce(url: str) -> None:
            say(console, f"Atropos API · {url} · {counted(len(queue.waiting), 'group')} waiting · {queue.path}")
            say(console, "No learner here: a trainer registers and reads /batch. --model NAME trains in this process.")

        state = QueueState(queue)
        await serve(state, listener, host=host, key=key, most_bytes=most_bytes, announce=announce)


async def serve_learner(
    config: RunConfig, project: str, settings: ServedQueue, judge: Judge | None, *, fresh: bool
) -> None:
    """Serves and trains until the last step or until it is told to stop."""
    from gavel.integrations.atropos.learner import AtroposLearner, LearnerSettings
    from gavel.trainer.backends.local import LocalBackend

    console = Console()
    model = trainable(config, project)
    kept = run_directory_of(model) / "atropos"
    steps = config.loop.steps
    backend = LocalBackend(
        engine=config.backend.engine,
        port=settings.policy_port,
        slots=config.backend.slots,
        max_context=config.backend.max_context,
        max_reply=config.backend.max_reply,
        tracker=config.backend.tracker,
    )
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(checked_listener(settings.host, settings.port, settings.key)))
        run = await stack.enter_async_context(opened_run(console, model, backend, judge, fresh=fresh))
        backend.pin(model, _experiment(config, project, settings, judge))
        run.begun()
        queue = stack.enter_context(contextlib.closing(GroupQueue(kept / FILE, most_groups=settings.max_waiting)))
        space, endpoint = backend.token_space(model), backend.endpoint(model)
        registration = TrainerRegistration(
            wandb_group=model.name,
            wandb_project=project,
            batch_size=settings.batch_size,
            max_token_len=space.max_context,
            checkpoint_dir=str(kept.resolve()),
            save_checkpoint_interval=0,
            starting_step=run.start,
            num_steps=steps - 1,  # an environment ends once the step and the batches that wait are more than this
        )
        state = QueueState(queue, OwnTrainer(registration, space))

        def stepped(result: TrainResult, groups: list[TrajectoryGroup]) -> None:
            scores = [each.reward for group in groups for each in group if each.reward is not None]
            mean = f"{fmean(scores):.2f}" if scores else "–"
            told = f"mean score {mean}" if result.trained else result.reason
            waited = result.metrics.get("atropos/steps_waited/mean", 0.0)
            taken = counted(len(groups), "group")
            say(console, f"step {result.step}/{steps}  {taken}  {told}  waited {waited:.1f} steps")
            if run.report is not None:
                run.report.write_if_due()

        bounds = LearnerSettings(steps, settings.batch_size, settings.wait_seconds, keep_checkpoints=_CHECKPOINTS)
        learner = AtroposLearner(model, backend, state, bounds, config.train, judge, stepped)

        async def work() -> None:
            await learner.run()
            await asyncio.sleep(_LINGER_SECONDS)

        def announce(url: str) -> None:
            scored = f"scored by {', '.join(judge.names)}" if judge else "with the environments' scores"
            say(console, f"Atropos API · {url} · trains {model.name} ({model.base_model}) {scored}")
            say(console, f"Policy · {endpoint.base_url} · model {model.name} · API key: anything · {endpoint.limits}")
            say(console, f"{counted(len(queue.waiting), 'group')} waiting · step {queue.step} of {steps}")

        await serve(
            state,
            listener,
            host=settings.host,
            key=settings.key,
            most_bytes=settings.most_bytes,
            announce=announce,
            work=work(),
        )
    run.say_end()


def _experiment(config: RunConfig, project: str, settings: ServedQueue, judge: Judge | None) -> dict[str, object]:
    """What a run goes on as; another setting of these is another run."""
    training = config.train.model_dump(
        mode="json",
        exclude={"total_steps", "warmup_steps", "micro_batch_tokens", "gradient_checkpointing", "whole_pass_tokens"},
    )
    judged = {} if judge is None else described_judge(judge)
    return {"scenario": project, "batch_size": settings.batch_size, "training": training, **judged}


app = single_command(with_options(serve_atropos, RunConfig, FLAGS))
