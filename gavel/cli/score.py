"""`gavel score`: scores trajectories from a file with a judge.

The whole file is read and checked before the first call to a judge. Each group is written to the output when it is
judged, and the same command goes on where it was stopped; a group that the judge failed on is written as unscored, with
the reason, and is judged again by the next run.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from gavel.cli.attempts import read_attempts
from gavel.cli.cassette_option import replay_account, replies_directory, with_cassette
from gavel.cli.execution import INTERRUPTED
from gavel.cli.judge_status import JudgeStatus
from gavel.cli.lazy import single_command
from gavel.cli.model_options import with_options
from gavel.cli.run_options import JUDGE_FLAGS, announce_stand_in, judge_config, with_default_judge
from gavel.cli.score_batch import answered_in_batches
from gavel.cli.score_display import print_scores
from gavel.cli.terminal import plain
from gavel.judge.config import JudgeConfig
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.llm.errors import first_error
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judged import unscored
from gavel.scenarios.judged_file import JudgedFile, JudgedStream, judged_output

Output = JudgedFile | JudgedStream


def score(
    values: Mapping[str, Any],
    file: Annotated[
        Path, typer.Argument(help="Attempts: JSONL, JSON, CSV, parquet, logs of other programs; see docs/files.md.")
    ],
    by: Annotated[
        str | None, typer.Option(help="Field (dotted path) that groups the rows. Default: task id or opening.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the judged groups: .jsonl, .jsonl.zst, .csv or .parquet; - is standard output. What it "
            "holds of an earlier run with the same settings is not judged again."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Replace the output file instead of going on with it.")
    ] = False,
    batch: Annotated[
        bool, typer.Option("--batch", help="Ask in batches: half the price, within a day. Needs --out FILE.")
    ] = False,
) -> None:
    """Score trajectories from a file with a judge."""
    score_and_print(file, judge_config(values), by, out, fresh=fresh, batch=batch)


def score_and_print(
    file: Path,
    config: JudgeConfig,
    by: str | None = None,
    out: Path | None = None,
    *,
    fresh: bool = False,
    batch: bool = False,
) -> None:
    """Scores the file's groups and prints their table; on stderr when standard output receives the groups.

    Raises a `GavelError` when the file is not usable, and after all else is done when the judge failed on a group.
    Ctrl-C says what is kept, and exits with status 130.
    """
    config = with_cassette(with_default_judge(config), replies_directory(out))
    announce_stand_in(config)
    judge = config.build()
    output = None if out is None else judged_output(out, judge.settings, is_input=_same(file, out))

    def unjudged() -> list[TrajectoryGroup]:
        groups = read_attempts(file, by)
        done = output.begin(groups, fresh=fresh) if output is not None else {}
        if output is not None:
            output.close()
        return [group for index, group in enumerate(groups) if index not in done]

    with answered_in_batches(config, out, unjudged) if batch else nullcontext(judge) as engine:
        try:
            judged = asyncio.run(
                score_file(file, engine, by=by, out=output, fresh=fresh and not batch, probe=not batch)
            )
        except KeyboardInterrupt:
            typer.echo(_kept(output, out), err=True)
            raise typer.Exit(INTERRUPTED) from None
    print_scores(Console(stderr=isinstance(output, JudgedStream)), judged, by)
    if replayed := replay_account(engine):
        Console(stderr=True).print(plain(replayed))
    if engine.cassette:
        engine.cassette.close()
    failed = [group.judgement for group in judged if _judge_failed(group)]
    if failed:
        raise JudgeError(
            f"the judge scored nobody in {len(failed)} of {len(judged)} groups: {failed[0] and failed[0].reason}",
            "What was scored is shown above; try again, or with another judge: --judge MODEL.",
        )


async def score_file(
    file: Path,
    judge: Judge,
    *,
    by: str | None = None,
    out: Output | Path | None = None,
    fresh: bool = False,
    probe: bool = True,
) -> list[TrajectoryGroup]:
    """The judged groups of `file` (see `read_file`), also written to `out`; its progress goes to stderr.

    `out` is an output or its name (see `judged_output`); groups that it already holds are not judged again, unless
    `fresh`. `probe`: the judge is asked one cheap question first. Raises `RowError` or `StoreError` when the file
    cannot be read, and `GavelError` when the judge cannot be asked or `out` cannot be used; nothing is judged then.
    """
    groups = await asyncio.to_thread(read_attempts, file, by)
    judge.check()
    if isinstance(out, Path):
        out = judged_output(out, judge.settings, is_input=_same(file, out))
    if out is None:
        judged = await _judge_all(groups, {}, judge, None, probe=probe)
    else:
        done = await asyncio.to_thread(out.begin, groups, fresh=fresh)
        if done:
            typer.echo(f"{len(done):,} of {len(groups):,} groups are judged already.", err=True)
        try:
            judged = await _judge_all(groups, done, judge, out, probe=probe)
            await asyncio.to_thread(out.finish)
        finally:
            out.close()
    return [judged[index] for index in range(len(groups))]


async def _judge_all(
    groups: Sequence[TrajectoryGroup],
    done: Mapping[int, TrajectoryGroup],
    judge: Judge,
    out: Output | None,
    *,
    probe: bool,
) -> dict[int, TrajectoryGroup]:
    judged = dict(done)
    writing = asyncio.Lock()
    if probe and any(group.trajectories for index, group in enumerate(groups) if index not in judged):
        await judge.probe()
    columns = (*Progress.get_default_columns(), JudgeStatus(lambda: judge.status))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(f"judging {len(groups)} groups", total=len(groups), completed=len(done))

        async def score(index: int, group: TrajectoryGroup) -> None:
            # A group whose rollouts all failed does not stop the others from being judged.
            nobody = f"no trajectories: {len(group.exceptions)} rollouts failed"
            judged[index] = await judge.score(group) if group.trajectories else unscored(group, nobody)
            if out is not None:
                async with writing:
                    await asyncio.to_thread(out.append, index, judged[index])
            progress.advance(bar)

        with first_error():
            async with asyncio.TaskGroup() as tasks:
                for index, group in enumerate(groups):
                    if index not in judged:
                        tasks.create_task(score(index, group))
    return judged


def _same(file: Path, out: Path) -> bool:
    return out.exists() and file.exists() and out.samefile(file)


def _kept(output: Output | None, out: Path | None) -> str:
    """What an interrupted run has kept."""
    match output:
        case None:
            return "Stopped. Nothing is kept without --out FILE."
        case JudgedStream():
            return f"Stopped. {len(output)} groups were written."
        case JudgedFile():
            return f"Stopped. {len(output)} groups are kept; the same command goes on from there ({out})."


def _judge_failed(group: TrajectoryGroup) -> bool:
    """Whether the judge was called and scored no member; a group with nothing to compare is no failure."""
    whole = group.judgement
    return whole is not None and whole.status == "unscored" and bool(whole.calls or whole.warnings)


app = single_command(with_options(score, JudgeConfig, JUDGE_FLAGS))
