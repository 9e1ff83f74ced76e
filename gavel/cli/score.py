"""`gavel score`: scores trajectories from a file with a judge.

The whole file is read and checked before the first call to a judge. Each group is written to the output when it is
judged, and the same command goes on where it was stopped; a group that the judge failed on is written as unscored, with
the reason, and is judged again by the next run.

With --batch the calls of the judge go through the vendor's batch interface. The batches of an output are kept in
`<output>.batch/` beside it until they are scored: after Ctrl-C, a kill or days, the same command goes on from there.
"""

import asyncio
import contextlib
import logging
import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gavel.base.errors import GavelError, first_error
from gavel.base.text import counted
from gavel.cli.interrupts import INTERRUPTED, run_interruptibly
from gavel.cli.judge import write_judged_page
from gavel.cli.named import read_attempts
from gavel.cli.options import (
    JUDGE_FLAGS,
    STAND_IN,
    DryRun,
    announce_stand_in,
    close_replies,
    judge_config,
    replies_directory,
    settings_command,
    with_cassette,
)
from gavel.cli.terminal import print_table, say, show_progress, status_of
from gavel.judge.config import JudgeConfig
from gavel.judge.errors import JudgeError
from gavel.judge.estimate import estimate_groups
from gavel.judge.judge import Judge
from gavel.judge.offline.stand_in import check_readable
from gavel.llm.batch import BatchCassette, Batches, batch_price, connection
from gavel.llm.budget import Budget, cost_in_words, prices_from_environment
from gavel.llm.cassette import Cassette
from gavel.llm.providers import is_local, model_id
from gavel.reports.judge_trust import read_report
from gavel.scenarios.formats.fields import Columns
from gavel.scenarios.group import TrajectoryGroup, unscored
from gavel.scenarios.judged_file import JudgedFile, JudgedStream, judged_output, scored_already
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.truth import truth_of

Output = JudgedFile | JudgedStream
_RULES = ", or other rules (--rubric '- says \"X\"', --rubric @FILE)."
"""Remedy for the stand-in, which scores nobody by a rubric that it cannot read."""
_WARNINGS = 3
"""The judge's own, of which the most common are printed."""
_MOST_REPORTED = 500
"""Groups; the intervals of more take longer than anyone expects to wait at the end."""


def score(
    values: Mapping[str, Any],
    file: Annotated[
        list[Path], typer.Argument(help="JSONL, JSON, CSV, parquet, logs, a run: see docs/files.md; - is stdin.")
    ],
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            "--group-column",
            help="Field (dotted path) that groups rows, or `opening`. Default: task and opening.",
        ),
    ] = None,
    prompt_column: Annotated[
        str | None, typer.Option(help="Column (dotted path) of what was asked, in a plain table.")
    ] = None,
    answer_column: Annotated[
        list[str] | None, typer.Option(help="Column of the answer. Repeatable: several in a row.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Judged groups: .jsonl(.zst), .csv, .parquet; - is stdout. What it has is kept.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace the output file, do not go on with it.")] = False,
    retry_unscored: Annotated[
        bool, typer.Option("--retry-unscored", help="FILE is judged: judge again the groups without a score.")
    ] = False,
    batch: Annotated[
        bool, typer.Option("--batch", help="Ask in batches: half the price, within a day; needs --out.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Score trajectories from a file with a judge.

    The judge is told what the columns `reference` (or `answer`), `rubric` and `criteria` of a group's rows hold.
    """
    config = judge_config(values)
    columns = Columns(prompt_column, tuple(answer_column or ())) if prompt_column or answer_column else None
    scoring = Scoring(file, by, out, columns=columns, fresh=fresh, retry_unscored=retry_unscored)
    scoring.print_estimate(config) if dry_run else scoring.run(config, batch=batch)


@dataclass(frozen=True, slots=True)
class Scoring:
    """What is scored, and where the scores go."""

    files: Sequence[Path]
    by: str | None = None
    out: Path | None = None
    columns: Columns | None = None
    fresh: bool = False
    """What `out` holds is judged again."""
    retry_unscored: bool = False
    """The files hold judged groups: those in which somebody was scored are kept."""

    def print_estimate(self, config: JudgeConfig) -> None:
        """Prints what judging the groups would take, but for those that `out` holds already; nothing is asked.

        Replies that are on the cassette cost nothing.
        """
        groups = read_attempts(self.files, self.by, self.columns)
        config = with_cassette(config, replies_directory(self.out))
        path = Path(config.cassette or "none")
        judge = config.build(cassette=Cassette(path, "replay") if path.is_file() else None)
        done = self._scored_before(groups, judge)
        if (output := self.output(judge)) is not None and not self.fresh:
            done |= output.peek(groups)
        estimate = run_interruptibly(estimate_groups(judge, [each for n, each in enumerate(groups) if n not in done]))
        already = f", {len(done):,} judged already" if done else ""
        typer.echo(f"{counted(len(groups), 'group')}{already}: {estimate.words}. Nothing was asked.")

    def run(self, config: JudgeConfig, *, batch: bool = False) -> None:
        """Scores the groups and prints their table; on stderr when standard output receives the groups.

        When the judge stops for good (a spent budget, a wrong key), what was judged until then is printed and kept.

        Raises a `GavelError` when a file is not usable, and after all else is done when the judge failed on a group.
        Ctrl-C says what is kept, and exits with status 130.
        """
        out, output, config = self.out, None, with_cassette(config, replies_directory(self.out))
        goes_on = f"the same command goes on from there ({out})."
        batches = BatchScoring(config, out) if batch else None
        try:
            judge = batches.judge() if batches else config.build()
            output = self.output(judge)
            judged = run_interruptibly(self.score(judge, output, batches.answer if batches else None))
            if batches and judge.stopped is None:
                batches.batches.remove()
        except KeyboardInterrupt:
            kept = "Nothing is kept without --out FILE." if output is None else f"Kept: {counted(len(output), 'group')}"
            typer.echo(f"Stopped. {kept}{f'; {goes_on}' if isinstance(output, JudgedFile) else ''}", err=True)
            raise typer.Exit(INTERRUPTED) from None
        finally:
            if batches:
                batches.batches.close()
        stopped = judge.stopped
        shown = [each for each in judged if not stopped or (each.judgement and each.judgement.status != "unscored")]
        if shown or stopped is None:
            asked = judge.asks_servers and not batches
            spent = f"this run: {counted(judge.budget.calls, 'call')}, {judge.budget.cost}" if asked else ""
            print_scores(Console(stderr=isinstance(output, JudgedStream)), shown, self.by, out=out, spent=spent)
        close_replies(Console(stderr=True), judge)
        if out is not None and isinstance(output, JudgedFile) and any(t.reward is not None for g in shown for t in g):
            try:  # the scores are kept whether or not the report can be written
                if len(shown) > _MOST_REPORTED:
                    typer.echo(f"How far to trust these scores: gavel judge report {shlex.quote(str(out))}", err=True)
                else:
                    typer.echo(f"Report: {write_judged_page(read_report(shown, None, out.name), out)}")
            except GavelError as error:
                typer.echo(f"The report was not written: {error.message}", err=True)
        if stopped is not None:
            kept = f" What was judged is kept; {goes_on}" if shown and isinstance(output, JudgedFile) else ""
            missing = f"{len(judged) - len(shown):,} of {counted(len(judged), 'group')}"
            raise JudgeError(f"not judged: {missing}: {stopped.message}", stopped.remedy + kept) from stopped
        wholes = [group.judgement for group in judged if group.judgement]
        failed = [whole for whole in wholes if whole.status == "unscored" and (whole.calls or whole.warnings)]
        if failed:  # a group with nothing to compare is no failure
            again = "The same command asks again for these alone; or n" if isinstance(output, JudgedFile) else "N"
            smaller = ", smaller groups or more reply tokens (--judge-param max_tokens=N)."
            raise JudgeError(
                f"the judge scored nobody in {len(failed)} of {counted(len(judged), 'group')}: {failed[0].reason}",
                f"{again}ame another judge (--judge MODEL){smaller if judge.asks_servers else _RULES}",
            )

    async def score(
        self,
        judge: Judge,
        output: Output | None,
        answer_first: Callable[[Sequence[TrajectoryGroup]], Awaitable[None]] | None = None,
    ) -> list[TrajectoryGroup]:
        """The judged groups, also written to `output`, which keeps what it holds; progress goes to stderr.

        `answer_first` receives the groups that are left to judge, before the first of them is judged. Raises `RowError`
        or `StoreError` when a file cannot be read, and `GavelError` when the judge has no key or `output` cannot be
        used; nothing is judged then.
        """
        groups = await asyncio.to_thread(read_attempts, self.files, self.by, self.columns)
        announce_stand_in(judge.names)
        judge.check()
        if set(judge.names) == {model_id(STAND_IN)}:
            check_readable(judge.rubric, [truth_of(group) for group in groups], whole=False)
        done = self._scored_before(groups, judge)
        with contextlib.closing(output) if output is not None else contextlib.nullcontext():
            if output is not None:
                earlier = await asyncio.to_thread(output.begin, groups, fresh=self.fresh)
                for index in done.keys() - earlier.keys():
                    await asyncio.to_thread(output.append, index, done[index])
                done |= earlier
                if done:
                    typer.echo(f"Judged already: {len(done):,} of {counted(len(groups), 'group')}.", err=True)
            missing = {index: group for index, group in enumerate(groups) if index not in done}
            if answer_first:
                await answer_first([*missing.values()])
            judged = done | await _judge_all(missing, judge, output)
            if output is not None:
                await asyncio.to_thread(output.finish)
        stopped = judge.stopped.message if judge.stopped else ""
        return [judged[index] if index in judged else unscored(group, stopped) for index, group in enumerate(groups)]

    def output(self, judge: Judge) -> Output | None:
        """Where the groups go that this judge scores."""
        if (out := self.out) is None:
            return None
        is_input = out.exists() and any(each.exists() and out.samefile(each) for each in self.files)
        return judged_output(out, judge.settings, is_input=is_input)

    def _scored_before(self, groups: Sequence[TrajectoryGroup], judge: Judge) -> dict[int, TrajectoryGroup]:
        names = ", ".join(map(str, self.files))
        return scored_already(names, groups, judge.settings) if self.retry_unscored else {}


async def _judge_all(
    groups: Mapping[int, TrajectoryGroup], judge: Judge, out: Output | None
) -> dict[int, TrajectoryGroup]:
    judged: dict[int, TrajectoryGroup] = {}
    if any(group.trajectories for group in groups.values()):
        judge.probe_when_asked()
    writing = asyncio.Lock()
    with show_progress(Console(stderr=True), "judging", len(groups), "groups", status_of(judge)) as advance:

        async def score(index: int, group: TrajectoryGroup) -> None:
            # A group whose rollouts all failed does not stop the others from being judged.
            nobody = f"no trajectories: {counted(len(group.exceptions), 'rollout')} failed"
            try:
                judged[index] = await judge.score(group) if group.trajectories else unscored(group, nobody)
            except JudgeError:
                if judge.stopped is None:
                    raise
                return  # the others end by themselves: what is paid for already is kept
            if out is not None:
                async with writing:
                    await asyncio.to_thread(out.append, index, judged[index])
            advance()

        with first_error():
            async with asyncio.TaskGroup() as tasks:
                for index, group in groups.items():
                    tasks.create_task(score(index, group))
    return judged


def print_scores(
    console: Console,
    groups: Sequence[TrajectoryGroup],
    by: str | None = None,
    *,
    out: Path | None = None,
    spent: str = "",
) -> None:
    """Prints how many members are scored, where the scores are, and each reason of the others once; then a table of all
    members, and the totals of calls, tokens and cost. `spent`: what this run has cost, in words."""
    members = [trajectory for group in groups for trajectory in group]
    scored = sum(trajectory.reward is not None for trajectory in members)
    of_all = f"{counted(len(members), 'trajectory')} in {counted(len(groups), 'group')}"
    place = "on standard output" if str(out) == "-" else f"in {out}" if out else "only here; --out FILE keeps them"
    at_all = f"Scored {scored:,} of {of_all}. The scores are {place}."
    say(console, at_all if scored else f"Nothing was scored: 0 of {of_all}.")
    reasons = Counter((t.judgement and t.judgement.reason) or "not judged" for t in members if t.reward is None)
    reasons.update((group.judgement and group.judgement.reason) or "no trajectories" for group in groups if not group)
    for reason, count in reasons.most_common():
        say(console, f"{count:,} unscored: {reason}")
    if any(len(group) == 1 and group.trajectories[0].reward is None for group in groups):
        alone = "Groups of one: --alone scored scores each by itself; --by FIELD puts rows of one task together."
        say(console, alone)
    rows: list[tuple[str, str, str, str]] = []
    for number, group in enumerate(groups, 1):
        label = str(group.metadata.get(by, number)) if by else str(number)
        for member, trajectory in enumerate(group, 1):
            score, said = "–", "unscored"
            if (judgement := trajectory.judgement) is not None and judgement.score is not None:
                error = "" if judgement.standard_error is None else f" ± {judgement.standard_error:.2f}"
                score = f"{judgement.score:.2f}{error}"
                said = "".join(f"[{flag}] " for flag in judgement.flags) + own_explanation(group, trajectory)
            rows.append((label if member == 1 else "", str(member), score, said))
        if not group.trajectories:
            rows.append((label, "", "–", ""))
    print_table(console, ("group", "member", "score", "explanation"), rows, right=("member", "score"))
    warned = Counter(warning for group in groups if group.judgement for warning in group.judgement.warnings)
    for warning, count in warned.most_common(_WARNINGS):
        say(console, f"warning: {warning} (in {counted(count, 'group')})", "yellow")
    wholes = [group.judgement for group in groups if group.judgement]
    opposed = sum(whole.order_agreement is not None and whole.order_agreement <= 0 for whole in wholes)
    calls = sum(whole.calls for whole in wholes)
    unknown = sum(whole.calls for whole in wholes if whole.cost_usd is None)
    cost = cost_in_words(sum(whole.cost_usd or 0.0 for whole in wholes), calls, unknown)
    parts = [
        counted(len(groups), "group"),
        f"{scored:,} of {counted(len(members), 'trajectory')} scored",
        f"orders contradict each other in {counted(opposed, 'group')}" if opposed else "",
        f"judge {', '.join(dict.fromkeys(model for whole in wholes for model in whole.models))}",
        counted(calls, "call"),
        f"{sum(w.prompt_tokens for w in wholes):,} + {sum(w.completion_tokens for w in wholes):,} tokens",
        cost + " (set GAVEL_PRICES)" * (cost == "cost unknown"),
        spent,
    ]
    say(console, " · ".join(filter(None, parts)))


def own_explanation(group: TrajectoryGroup, trajectory: Trajectory) -> str:
    """A member's explanation without the warnings of its group, which are printed once below."""
    explanation = trajectory.judgement.explanation if trajectory.judgement else ""
    for warning in group.judgement.warnings if group.judgement else ():
        explanation = explanation.replace(f"{warning}. ", "")
    return explanation


class BatchScoring:
    """The batches behind one output."""

    def __init__(self, config: JudgeConfig, out: Path | None) -> None:
        """Raises a `GavelError` when `out` is no file, or another process waits for its batches."""
        if out is None or str(out) == "-" or (out.exists() and not out.is_file()):
            raise GavelError("batches take up to a day, and need a file to be kept beside.", "Add --out FILE.")
        if config.mode in ("decisions", "readout"):
            raise GavelError(
                f"batches answer in words, and the mode {config.mode} reads probabilities.", "Leave --batch out."
            )
        logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)  # it prints a traceback for a failure that passes
        prices = dict(prices_from_environment() if config.prices is None else config.prices)
        budget = Budget(config.max_cost_usd, config.max_tokens)
        for juror in config.build().jurors:
            for model in juror.models:
                if isinstance(model, str) and not is_local(name := model_id(model)):
                    connection(name, juror.params)  # others are code of this process
                    if each := batch_price(name, prices, juror.params):
                        prices[name] = each
                    budget.check(name, prices.get(name))
        limits = {"max_cost_usd": None, "max_tokens": None, "requests_per_minute": None, "tokens_per_minute": None}
        self._config = config.model_copy(update={"prices": prices, **limits})
        self.batches = Batches(out.with_name(f"{out.name}.batch"), prices, budget, partial(typer.echo, err=True))
        named = config.cassette
        path = self.batches.directory / "cassette.sqlite" if named is None or str(named) == "none" else named
        self._cassette = BatchCassette(path, self.batches)

    async def answer(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Judges the groups again and again, each time with more replies, until no question is open."""
        while True:
            judge = self.judge()
            judge.check()
            with first_error():
                async with asyncio.TaskGroup() as tasks:
                    for group in groups:
                        if group.trajectories:
                            tasks.create_task(judge.score(group))
            self._cassette.close()
            if not await self.batches.advance():
                return

    def judge(self) -> Judge:
        """A judge that is answered by the batches, and by the cassette. The batches keep to budget and limits."""
        return self._config.build(cassette=self._cassette)


app = settings_command(score, JudgeConfig, JUDGE_FLAGS)
