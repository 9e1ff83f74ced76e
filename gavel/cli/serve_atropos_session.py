"""What `gavel serve-atropos` does: a queue behind HTTP, with a learner that takes from it or without.

Imports torch only for a learner.
"""

import asyncio
import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from gavel.base.text import counted
from gavel.integrations.atropos.queue import GroupQueue, OwnTrainer, QueueState, TrainerRegistration
from gavel.integrations.atropos.server import checked_listener, serve
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.loop.experiment import described_judge
from gavel.trainer.run_config import RunConfig

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
    with contextlib.closing(checked_listener(host, port, key)) as listener, _opened(data / FILE, max_waiting) as queue:

        def announce(url: str) -> None:
            _say(console, f"Atropos API · {url} · {counted(len(queue.waiting), 'group')} waiting · {queue.path}")
            _say(console, "No learner here: a trainer registers and reads /batch. --model NAME trains in this process.")

        state = QueueState(queue)
        await serve(state, listener, host=host, key=key, most_bytes=most_bytes, announce=announce)


async def serve_learner(
    config: RunConfig, project: str, settings: ServedQueue, judge: Judge | None, *, fresh: bool
) -> None:
    """Serves and trains until the last step or until it is told to stop."""
    from gavel.cli.live_report import LiveReport
    from gavel.cli.run_model import close_replies, say_cost, starting_over
    from gavel.integrations.atropos.learner import AtroposLearner, LearnerSettings
    from gavel.trainer.backends.local import LocalBackend
    from gavel.trainer.model import TrainableModel
    from gavel.trainer.runs.run_directory import run_path, runs_root

    console = Console()
    assert config.model.name is not None
    model = TrainableModel(
        name=config.model.name,
        project=project,
        base_model=config.model.base_model,
        lora=config.model.lora,
        policy=config.model.policy,
        from_checkpoint=config.model.from_checkpoint,
        renderer=config.model.renderer,
    )
    directory = run_path(runs_root(), project, model.name)
    steps = config.loop.steps
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(checked_listener(settings.host, settings.port, settings.key)))
        replaced = stack.enter_context(starting_over(console, model)) if fresh else None
        backend = await stack.enter_async_context(
            LocalBackend(
                engine=config.backend.engine,
                port=settings.policy_port,
                slots=config.backend.slots,
                max_context=config.backend.max_context,
                max_reply=config.backend.max_reply,
                tracker=config.backend.tracker,
            )
        )
        await model.register(backend)
        backend.pin(model, _experiment(config, project, settings, judge))
        if replaced is not None:
            replaced.delete()
        queue = stack.enter_context(_opened(directory / "atropos" / FILE, settings.max_waiting))
        space, endpoint = backend.token_space(model), backend.endpoint(model)
        registration = TrainerRegistration(
            wandb_group=model.name,
            wandb_project=project,
            batch_size=settings.batch_size,
            max_token_len=space.max_context,
            checkpoint_dir=str((directory / "atropos").resolve()),
            save_checkpoint_interval=0,
            starting_step=await model.get_step(),
            num_steps=steps - 1,  # an environment ends once the step and the batches that wait are more than this
        )
        state = QueueState(queue, OwnTrainer(registration, space))
        report = LiveReport(directory)

        def stepped(result: TrainResult, groups: list[TrajectoryGroup]) -> None:
            scores = [each.reward for group in groups for each in group if each.reward is not None]
            mean = f"{sum(scores) / len(scores):.2f}" if scores else "–"
            told = f"mean score {mean}" if result.trained else result.reason
            waited = result.metrics.get("atropos/steps_waited/mean", 0.0)
            _say(
                console,
                f"step {result.step}/{steps}  {counted(len(groups), 'group')}  {told}  waited {waited:.1f} steps",
            )
            report.write_if_due()

        learner = AtroposLearner(
            model,
            backend,
            state,
            LearnerSettings(steps, settings.batch_size, settings.wait_seconds, keep_checkpoints=_CHECKPOINTS),
            config.train,
            judge,
            stepped,
        )

        async def work() -> None:
            await learner.run()
            await asyncio.sleep(_LINGER_SECONDS)

        def announce(url: str) -> None:
            scored = f"scored by {', '.join(judge.names)}" if judge else "with the environments' scores"
            _say(console, f"Atropos API · {url} · trains {model.name} ({model.base_model}) {scored}")
            _say(console, f"Policy · {endpoint.base_url} · model {model.name} · API key: anything · {endpoint.limits}")
            _say(console, f"{counted(len(queue.waiting), 'group')} waiting · step {queue.step} of {steps}")

        try:
            await serve(
                state,
                listener,
                host=settings.host,
                key=settings.key,
                most_bytes=settings.most_bytes,
                announce=announce,
                work=work(),
            )
        finally:
            say_cost(console, judge)
            if judge is not None:
                close_replies(console, judge)
        page = report.write()
    if page is not None:
        _say(console, f"Report: {page}")
    _say(console, f"Run: {directory}")


def _experiment(config: RunConfig, project: str, settings: ServedQueue, judge: Judge | None) -> dict[str, object]:
    """What a run goes on as; another setting of these is another run."""
    training = config.train.model_dump(
        mode="json",
        exclude={"total_steps", "warmup_steps", "micro_batch_tokens", "gradient_checkpointing", "whole_pass_tokens"},
    )
    judged = {} if judge is None else described_judge(judge)
    return {"scenario": project, "batch_size": settings.batch_size, "training": training, **judged}


@contextlib.contextmanager
def _opened(path: Path, most_groups: int) -> Generator[GroupQueue]:
    queue = GroupQueue(path, most_groups=most_groups)
    try:
        yield queue
    finally:
        queue.close()


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
