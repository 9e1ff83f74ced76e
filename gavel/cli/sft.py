"""`gavel sft`: trains a model to imitate the best members of judged groups, the shortest way from logs to a policy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.base.text import counted
from gavel.cli.lazy_commands import single_command
from gavel.cli.named import read_attempts
from gavel.cli.options import LORA_FLAGS, MEMORY_FLAGS, MODEL_FLAGS, START_FLAG, Flag, read_settings, with_options
from gavel.cli.terminal import RESUME, run_to_end, say, show_progress
from gavel.cli.training import open_backend, open_run, say_outcome, trainable
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.loop.imitation import choose_best_members, imitate, imitation_plan
from gavel.trainer.run_config import ImitationConfig

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


def sft(
    values: Mapping[str, Any],
    file: Annotated[list[Path], typer.Argument(help="Judged groups, as `gavel score --out` writes them.")],
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of continuing an earlier run.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be imitated; train nothing.")] = False,
) -> None:
    """Train a model to imitate the best members of judged groups.

    The same command continues after its last finished step. The run is kept under `sft/NAME` among the runs.
    """
    config = read_settings(ImitationConfig, values, FLAGS)
    best, above = config.choose.best, config.choose.above
    chosen = choose_best_members(read_attempts(file), best, above)
    if not chosen.scored:
        raise GavelError(
            "no trajectory of the file has a score.", "Judge it first: gavel score FILE --judge … --out judged.jsonl"
        )
    if not chosen.trajectories:
        raise GavelError(f"no score of the file is above {above}.", "Choose a lower --above.")
    reasons = {
        "not among their group's best": chosen.not_best,
        "scored too low": chosen.too_low,
        "without a score": chosen.unscored,
    }
    told = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
    whole = f"{len(chosen.trajectories):,} of {counted(chosen.scored + chosen.unscored, 'trajectory')}"
    typer.echo(f"Imitates {whole}{told and f' ({told})'}.")
    if chosen.alike:
        imitated = "the first in the file is" if best == 1 else f"the first {best} in the file are"
        typer.echo(
            f"{chosen.alike:,} of {counted(chosen.groups, 'group')} had no best member, because all scores of a group "
            f"are alike: {imitated} imitated. A judge that tells members apart (gavel score FILE --judge …) or "
            "a threshold (--above) chooses better.",
            err=True,
        )
    if dry_run:
        return
    need_extra("train", "gavel sft")
    run_to_end(run_imitation(config, chosen.trajectories, fresh=fresh), RESUME)


async def run_imitation(config: ImitationConfig, trajectories: Sequence[Trajectory], *, fresh: bool = False) -> None:
    """Trains until every trajectory was imitated in every epoch, and prints what came of it."""
    console = Console()
    steps = len(imitation_plan(len(trajectories), config.train.epochs, config.train.batch_size, config.seed))
    model = trainable(config, _PROJECT).model_copy(update={"name": config.run_name})
    told = ""
    async with open_run(console, model, await open_backend(config.backend, config), fresh=fresh) as run:

        def stepped(result: TrainResult) -> None:
            nonlocal told
            run.begun()
            loss = result.metrics.get("loss")
            told = str(result.reason) if loss is None else f"loss {loss:.3f}"
            if not console.is_terminal or loss is None:
                say(console, f"step {result.step}/{steps}  {told}")
            advance()
            if run.report is not None:
                run.report.write_if_due()

        with show_progress(console, "learning", steps - run.start, "steps", lambda: told) as advance:
            await imitate(model, trajectories, config.train, seed=config.seed, stepped=stepped)
    if run.start >= steps:
        say(console, f"The run was finished after step {run.start}.")
    say_outcome(console, run.rows)
    run.say_end()


app = single_command(with_options(sft, ImitationConfig, FLAGS))
