"""What `gavel sft` does once it is known what to imitate. Imports torch; the command imports it only when it runs."""

import contextlib
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from gavel.cli.live_report import LiveReport
from gavel.cli.train_session import starting_over
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.loop.imitation import imitate, imitation_plan
from gavel.trainer.model import TrainableModel
from gavel.trainer.run_config import ImitationConfig
from gavel.trainer.runs.run_directory import run_path, runs_root

_PROJECT = "sft"


async def run_imitation(config: ImitationConfig, trajectories: Sequence[Trajectory], *, fresh: bool = False) -> None:
    """Trains until every trajectory was imitated in every epoch, and prints the loss of the first and the last step."""
    console = Console()
    steps = len(imitation_plan(len(trajectories), config.train.epochs, config.train.batch_size, config.seed))
    model = TrainableModel(
        name=config.run_name,
        project=_PROJECT,
        base_model=config.model.base_model,
        lora=config.model.lora,
        policy=config.model.policy,
        from_checkpoint=config.model.from_checkpoint,
        renderer=config.model.renderer,
    )
    backend = LocalBackend(engine=config.backend.engine, max_context=config.backend.max_context)
    directory = run_path(runs_root(), _PROJECT, model.name)
    report = LiveReport(directory)
    progress = Progress(
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(bar_width=24),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
    )
    async with contextlib.AsyncExitStack() as stack:
        replaced = stack.enter_context(starting_over(console, model)) if fresh else None
        await stack.enter_async_context(backend)
        await model.register(backend)
        start = await model.get_step()
        task = progress.add_task("", total=steps, completed=start)

        def stepped(result: TrainResult) -> None:
            if replaced is not None:
                replaced.delete()
            loss = result.metrics.get("loss")
            line = result.reason if loss is None else f"loss {loss:.3f}"
            progress.update(task, completed=result.step, description=line)
            if not console.is_terminal or loss is None:
                _say(console, f"step {result.step}/{steps}  {line}")
            report.write_if_due()

        with progress if console.is_terminal else contextlib.nullcontext():
            await imitate(model, trajectories, config.train, seed=config.seed, stepped=stepped)
        losses = [row["loss"] for row in backend.history(model, _PROJECT) if row.get("loss") is not None]
    if start >= steps:
        _say(console, f"The run was finished after step {start}.")
    if losses:
        _say(console, f"Loss of a token: {losses[0]:.3f} at first, {losses[-1]:.3f} in the last step")
    if (page := report.write()) is not None:
        _say(console, f"Report: {page}")
    _say(console, f"Run: {directory}")


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
