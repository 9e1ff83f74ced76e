"""`gavel sft`: trains a model to imitate the best members of judged groups, the shortest way from logs to a policy."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.base.text import counted
from gavel.cli.lazy_commands import single_command
from gavel.cli.named import read_attempts
from gavel.cli.options import LORA_FLAGS, MEMORY_FLAGS, MODEL_FLAGS, START_FLAG, Flag, given, with_options
from gavel.cli.run_file import merged, validated
from gavel.cli.terminal import RESUME, TRAINER, run_to_end, say, waiting_for
from gavel.cli.training import LiveReport, say_outcome, starting_over, trainable
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.loop.imitation import BestMembers, best_members, imitate, imitation_plan
from gavel.trainer.run_config import ImitationConfig
from gavel.trainer.runs.run_directory import run_path, runs_root

_PROJECT = "sft"
FLAGS = [
    *MODEL_FLAGS,
    START_FLAG,
    *LORA_FLAGS,
    Flag("choose.best", "--best"),
    Flag("choose.above", "--above"),
    Flag("train.learning_rate", "--learning-rate"),
    Flag("train.epochs", "--epochs"),
    Flag("train.batch_size", "--batch-size"),
    Flag("train.optimizer", "--optimizer"),
    *MEMORY_FLAGS,
    Flag("seed", "--seed"),
    Flag("backend.engine", "--engine"),
]


class NothingChosenError(GavelError):
    """No member of the files is to be imitated."""


def sft(
    values: Mapping[str, Any],
    file: Annotated[list[Path], typer.Argument(help="Judged groups, as `gavel score --out` writes them.")],
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of continuing an earlier run.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be imitated; train nothing.")] = False,
) -> None:
    """Train a model to imitate the best members of judged groups.

    The same command continues after its last finished step. The run is kept under `sft/NAME` among the runs.
    """
    where = {tuple(flag.path.split(".")): flag.name for flag in FLAGS}
    config = validated(ImitationConfig, merged({}, given(values, ImitationConfig, FLAGS)), where)
    chosen = best_members(read_attempts(file), config.choose.best, config.choose.above)
    if not chosen.trajectories:
        raise nothing_chosen(chosen, config.choose.above)
    typer.echo(f"Imitates {account(chosen)}.")
    if chosen.alike:
        typer.echo(without_best(chosen, config.choose.best), err=True)
    if dry_run:
        return
    need_extra("train", "gavel sft")
    run_to_end(run_imitation(config, chosen.trajectories, fresh=fresh), RESUME)


async def run_imitation(config: ImitationConfig, trajectories: Sequence[Trajectory], *, fresh: bool = False) -> None:
    """Trains until every trajectory was imitated in every epoch, and prints what came of it."""
    with waiting_for(TRAINER):
        from gavel.trainer.backends.local import LocalBackend

    console = Console()
    steps = len(imitation_plan(len(trajectories), config.train.epochs, config.train.batch_size, config.seed))
    model = trainable(config, _PROJECT).model_copy(update={"name": config.run_name})
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
        with waiting_for(f"loading {model.base_model}"):
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
                say(console, f"step {result.step}/{steps}  {line}")
            report.write_if_due()

        with (
            progress
            if console.is_terminal
            else waiting_for(lambda: f"step {progress.tasks[task].completed:.0f}/{steps}: learning")
        ):
            await imitate(model, trajectories, config.train, seed=config.seed, stepped=stepped)
        rows = backend.history(model, _PROJECT)
    if start >= steps:
        say(console, f"The run was finished after step {start}.")
    say_outcome(console, rows)
    if (page := report.write()) is not None:
        say(console, f"Report: {page}")
    say(console, f"Run: {directory}")


def account(chosen: BestMembers) -> str:
    """`38 of 320 trajectories (240 not among their group's best, 2 scored too low, 40 without a score)`."""
    reasons = {
        "not among their group's best": chosen.not_best,
        "scored too low": chosen.too_low,
        "without a score": chosen.unscored,
    }
    told = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
    whole = f"{len(chosen.trajectories):,} of {counted(chosen.scored + chosen.unscored, 'trajectory')}"
    return f"{whole} ({told})" if told else whole


def without_best(chosen: BestMembers, best: int) -> str:
    """What is imitated of groups whose members have the same score, and what can be done."""
    imitated = "the first in the file is" if best == 1 else f"the first {best} in the file are"
    return (
        f"{chosen.alike:,} of {counted(chosen.groups, 'group')} had no best member, because all scores of a group "
        f"are alike: {imitated} imitated. A judge that tells members apart (gavel score FILE --judge …) or "
        "a threshold (--above) chooses better."
    )


def nothing_chosen(chosen: BestMembers, above: float | None) -> NothingChosenError:
    if not chosen.scored:
        return NothingChosenError(
            "no trajectory of the file has a score.", "Judge it first: gavel score FILE --judge … --out judged.jsonl"
        )
    return NothingChosenError(f"no score of the file is above {above}.", "Choose a lower --above.")


app = single_command(with_options(sft, ImitationConfig, FLAGS))
