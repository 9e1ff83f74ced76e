"""`gavel sft`: trains a model to imitate the best members of judged groups, the shortest way from logs to a policy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gavel.cli.attempts import read_attempts
from gavel.cli.interrupts import RESUME, run_to_end
from gavel.cli.lazy_commands import single_command
from gavel.cli.model_options import Flag, given, with_options
from gavel.cli.run_file import merged, validated
from gavel.cli.run_options import LORA_FLAGS, MEMORY_FLAGS, MODEL_FLAGS, START_FLAG
from gavel.cli.terminal import TRAINER, loading
from gavel.extras import need_extra
from gavel.llm.counted import counted
from gavel.llm.errors import GavelError
from gavel.trainer.run_config import ImitationConfig
from gavel.trainer.sft.best_members import BestMembers, best_members

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
    with loading(TRAINER):
        from gavel.cli.sft_session import run_imitation

    run_to_end(run_imitation(config, chosen.trajectories, fresh=fresh), RESUME)


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
