"""`gavel score`: scores trajectories from a file with a judge.

The whole file is read and checked before the first call to a judge. The output file is written whole or not at all; a
group that the judge failed on is written as unscored, with the reason.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from gavel.cli.judge_status import JudgeStatus
from gavel.cli.lazy import single_command
from gavel.cli.model_options import with_options
from gavel.cli.run_options import JUDGE_FLAGS, DryRun, judge_config, with_default_judge
from gavel.cli.terminal import plain
from gavel.judge.config import JudgeConfig
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.panel.judgements import unscored
from gavel.llm.errors import GavelError, first_error
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.jsonl import read_groups
from gavel.scenarios.record_format import to_line
from gavel.scenarios.store import TrajectoryStore
from gavel.scenarios.trajectory import Trajectory


def score(
    values: Mapping[str, Any],
    file: Annotated[
        Path, typer.Argument(help="JSONL of message lists, trajectories or groups; or a .jsonl.zst store.")
    ],
    by: Annotated[str | None, typer.Option(help="Field (dotted path) whose value groups the rows.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the judged groups, as JSONL; as a store, if it ends in .zst.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Score trajectories from a file with a judge."""
    config = judge_config(values)
    if dry_run:
        print_estimate(file, config, by)
    else:
        score_and_print(file, config, by, out)


def print_estimate(file: Path, config: JudgeConfig, by: str | None = None) -> None:
    """Prints what judging the file's groups would take; nothing is asked."""
    from gavel.judge.estimate import estimate_groups

    groups = read_groups(file, by)
    estimate = asyncio.run(estimate_groups(config.build(), groups))
    typer.echo(f"{len(groups):,} group{'s' * (len(groups) != 1)}: {estimate.words}. Nothing was asked.")


def score_and_print(file: Path, config: JudgeConfig, by: str | None = None, out: Path | None = None) -> None:
    """Scores the file's groups and prints their table.

    Raises a `GavelError` when the file is not usable, and after all else is done when the judge failed on a group.
    """
    engine = with_default_judge(config).build()
    judged = asyncio.run(score_file(file, engine, by=by, out=out))
    print_scores(Console(), judged, by)
    failed = [group.judgement for group in judged if _judge_failed(group)]
    if failed:
        raise JudgeError(
            f"the judge scored nobody in {len(failed)} of {len(judged)} groups: {failed[0] and failed[0].reason}",
            "What was scored is shown above; try again, or with another judge: --judge MODEL.",
        )


async def score_file(
    file: Path, judge: Judge, *, by: str | None = None, out: Path | None = None
) -> list[TrajectoryGroup]:
    """The judged groups of `file` (see `read_groups`), also written to `out`; its progress goes to stderr.

    A name that ends in `.zst` makes `out` a trajectory store, any other makes it JSONL. Raises `RowError` or
    `StoreError` when the file cannot be read, and `GavelError` when the judge has no key or `out` cannot be written;
    nothing is judged then.
    """
    groups = await asyncio.to_thread(read_groups, file, by)
    judge.check()
    if out is None:
        return await _judge_all(groups, judge)
    unfinished = _begin(out)
    try:
        judged = await _judge_all(groups, judge)
        with _os_errors(out):
            await asyncio.to_thread(_write, unfinished, judged, store=out.suffix == ".zst")
            unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)
    return judged


async def _judge_all(groups: Sequence[TrajectoryGroup], judge: Judge) -> list[TrajectoryGroup]:
    if any(group.trajectories for group in groups):
        await judge.probe()
    columns = (*Progress.get_default_columns(), JudgeStatus(lambda: judge.status))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(f"judging {len(groups)} groups", total=len(groups))

        async def score(group: TrajectoryGroup) -> TrajectoryGroup:
            # A group whose rollouts all failed does not stop the others from being judged.
            nobody = f"no trajectories: {len(group.exceptions)} rollouts failed"
            judged = await judge.score(group) if group.trajectories else unscored(group, nobody)
            progress.advance(bar)
            return judged

        with first_error():
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(score(group)) for group in groups]
    return [task.result() for task in running]


def print_scores(console: Console, groups: Sequence[TrajectoryGroup], by: str | None = None) -> None:
    """Prints a table of all members, and the totals of calls, tokens and cost."""
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("group", overflow="fold")
    table.add_column("member", justify="right")
    table.add_column("score", no_wrap=True)
    table.add_column("explanation", overflow="fold")
    for number, group in enumerate(groups, 1):
        label = str(group.metadata.get(by, number)) if by else str(number)
        if not group.trajectories and group.judgement:
            table.add_row(plain(label), "", "–", plain(group.judgement.reason or ""))
        for member, trajectory in enumerate(group, 1):
            last = member == len(group)
            table.add_row(plain(label if member == 1 else ""), str(member), *_score_cells(trajectory), end_section=last)
    console.print(table)
    console.print(plain(_account(groups)))


def _score_cells(trajectory: Trajectory) -> tuple[Text, Text]:
    judgement = trajectory.judgement
    if judgement is None or judgement.score is None:
        return Text("–"), plain((judgement and judgement.reason) or "not judged")
    flags = "".join(f"[{flag}] " for flag in judgement.flags)
    error = "" if judgement.standard_error is None else f" ± {judgement.standard_error:.2f}"
    return Text(f"{judgement.score:.2f}{error}"), plain(flags + judgement.explanation)


def _account(groups: Sequence[TrajectoryGroup]) -> str:
    """`2 groups · 7 of 8 trajectories scored · judge openai/gpt-5-mini · 4 calls · 5,120 + 610 tokens · 0.02 USD`"""
    wholes = [group.judgement for group in groups if group.judgement]
    members = [trajectory for group in groups for trajectory in group]
    scored = sum(trajectory.reward is not None for trajectory in members)
    models = dict.fromkeys(model for whole in wholes for model in whole.models)
    asked = [whole for whole in wholes if whole.calls]
    costs = [whole.cost_usd for whole in asked if whole.cost_usd is not None]
    return " · ".join(
        [
            f"{len(groups):,} group{'s' * (len(groups) != 1)}",
            f"{scored:,} of {len(members):,} trajectories scored",
            f"judge {', '.join(models)}",
            f"{sum(whole.calls for whole in wholes):,} calls",
            f"{sum(w.prompt_tokens for w in wholes):,} + {sum(w.completion_tokens for w in wholes):,} tokens",
            f"{sum(costs):.4f} USD" if len(costs) == len(asked) else "cost unknown (set GAVEL_PRICES)",
        ]
    )


def _judge_failed(group: TrajectoryGroup) -> bool:
    """Whether the judge was called and scored no member; a group with nothing to compare is no failure."""
    whole = group.judgement
    return whole is not None and whole.status == "unscored" and bool(whole.calls or whole.warnings)


def _begin(path: Path) -> Path:
    """Creates an empty file beside `path`, to be filled and renamed: an unwritable path is reported before judging."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    with _os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError("it is a directory")
        unfinished.touch()
    return unfinished


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise GavelError(f"{path} cannot be written: {error}", "Choose another file with --out.") from error


def _write(path: Path, groups: Sequence[TrajectoryGroup], *, store: bool) -> None:
    if store:
        TrajectoryStore(path).extend(groups)
        return
    with path.open("w", encoding="ascii") as stream:
        stream.writelines(f"{to_line(group)}\n" for group in groups)
        stream.flush()
        os.fsync(stream.fileno())


app = single_command(with_options(score, JudgeConfig, JUDGE_FLAGS))
