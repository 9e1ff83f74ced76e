"""`gavel judge …`: drafts of rubrics, and tests of the judge itself.

rubric     a judge model drafts a rubric, to be read and edited by its owner
report     reliability and biases of a judge, as a table and as one self-contained HTML file
golden     a test of a judge and its prompts on groups of known order, shipped or labelled by people, which also tells
           how often the judge is right and what each member of a jury should weigh. Replies are stored on a cassette,
           so a repeated run requests only what a change of prompts changed
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import typer
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.text import counted
from gavel.cli.interrupts import run_interruptibly
from gavel.cli.lazy_commands import group_app
from gavel.cli.named import file_named
from gavel.cli.options import JUDGE_PARAMS, STAND_IN, default_judge, read_settings, with_options
from gavel.cli.terminal import print_table, say
from gavel.judge.audit.golden import GoldenResult, check_golden, golden_scores, jury_weights, learnt_prior, with_weights
from gavel.judge.audit.human_labels import SHIPPED, counts_down, load_golden
from gavel.judge.config import JudgeConfig
from gavel.judge.drafts import draft_rubric
from gavel.judge.errors import JudgeError
from gavel.llm.budget import prices_from_environment
from gavel.llm.client import Client
from gavel.reports.judge_trust import JudgeReport, read_report, render_report
from gavel.reports.page import write_file
from gavel.scenarios.formats.reading import read_groups
from gavel.trainer.runs.run_directory import runs_root


def rubric(
    description: Annotated[str, typer.Argument(help="The agent's job, in a sentence or more.")],
    model: Annotated[str | None, typer.Option(help="Judge model. Default: GAVEL_JUDGE_MODEL.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also writes it to a file, for --rubric @FILE.")] = None,
    criteria: Annotated[bool, typer.Option("--criteria", help="Weighted criteria (JSON) instead of a text.")] = False,
) -> None:
    """Draft a rubric for a job with a judge model."""
    if out is not None and out.exists():
        raise GavelError(f"{out} is there already.", "Choose another file with --out, or move this one away.")
    client = Client(model or default_judge(), prices=prices_from_environment())
    text = run_interruptibly(draft_rubric(client, description, criteria=criteria)).dump()
    typer.echo(text)  # before the file, which may fail: the draft was paid for
    if out is None:
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise GavelError(f"{out} cannot be written: {error}", "Copy the rubric from above.") from error
    typer.echo(
        f"Written to {out}. Read and edit it, then: gavel score FILE --rubric {shlex.quote(f'@{out}')}", err=True
    )


def report(
    file: Annotated[Path, typer.Argument(metavar="FILE|RUN", help="What `gavel score --out` wrote, or a run.")],
    reference: Annotated[str | None, typer.Option(help="Metric to compare with. Default: independent_reward.")] = None,
    by: Annotated[str | None, typer.Option(help="Field (dotted path) that groups rows of single trajectories.")] = None,
) -> None:
    """Compare a judge with a reference, with other judges and with itself, and look for its biases."""
    file = file_named(file)
    found = read_report(read_groups(file, by), reference, file.name)
    page = write_judged_page(found, file)
    print_report(Console(), found)
    say(Console(), f"Report: {page}")


def write_judged_page(report: JudgeReport, file: Path) -> Path:
    """Writes the report of the judged groups of a file beside it, of a run into it."""
    beside = file.with_name(f"{file.name.removesuffix('.zst').removesuffix('.jsonl')}.report.html")
    page = file / "judge.report.html" if file.is_dir() else beside
    write_file(page, render_report(report))
    return page


def print_report(console: Console, report: JudgeReport) -> None:
    """Prints the verdict, the figures in their sections, and the notes."""
    say(console, f"{report.source} · {', '.join(report.judges) or 'judge unknown'}")
    say(console, report.facts)
    say(console, report.verdict, "bold")
    rows: list[tuple[str, ...]] = []
    for title, figures in report.sections.items():
        rows += [("", "", "", "", ""), (title, "", "", "", "")]
        rows += [(f"  {f.name}", f.value, f.interval, f"{f.estimate.groups:,}", f.meaning) for f in figures]
    numbers = ("value", "95 % interval", "groups")
    print_table(console, ("", *numbers, "meaning"), rows, right=numbers)
    for note in [*report.notes, *(f"{count:,} unscored: {reason}" for reason, count in report.unscored.items())]:
        say(console, note)


def golden(
    values: Mapping[str, Any],
    file: Annotated[
        Path | None, typer.Argument(help="Labelled pairs, rankings, ratings, ordered groups. Default: the shipped set.")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="Judge model. Default: GAVEL_JUDGE_MODEL.")] = None,
    rubric: Annotated[str | None, typer.Option(help="What good work is: a text, or @FILE.")] = None,
    label: Annotated[str | None, typer.Option(help="Field that holds the label, where several could.")] = None,
    by: Annotated[str | None, typer.Option(help="Field that names the task, where a row holds one attempt.")] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt-column", help="Field with what was asked, where its name does not say so.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Groups to judge, evenly spread over the file.")] = None,
    cassette: Annotated[
        Path | None, typer.Option(help='Stores the replies; "none" = no file. Default: golden.sqlite of the runs.')
    ] = None,
) -> None:
    """Check a judge and its prompts on groups of known order."""
    model = judge or default_judge()
    if model == STAND_IN:
        raise JudgeError(
            "the stand-in checks rules of a rubric and reads no answers, so a golden set says nothing of it.",
            "Name a judge model: --judge openai/gpt-5-mini, or GAVEL_JUDGE_MODEL.",
        )
    tape = cassette or runs_root() / "golden.sqlite"
    params = read_settings(JudgeConfig, values, JUDGE_PARAMS).params
    engine = JudgeConfig(models=model, rubric=rubric, cassette=tape, params=params).build()
    engine.probe_when_asked()
    known = load_golden(file or SHIPPED, label, by, prompt)
    if field := known[0].label:
        say(Console(), f"The order is that of the field {field}{', 1 is best' if counts_down(field) else ''}.")
    known = [known[at * len(known) // limit] for at in range(limit)] if limit and limit < len(known) else known
    results = run_interruptibly(check_golden(engine, known))
    if engine.cassette is not None:
        engine.cassette.close()
    _print_golden(results, " + ".join(engine.names))
    if failed := [result for result in results if not result.scores]:
        raise JudgeError(
            f"{len(failed)} of {counted(len(results), 'group')} without a judgement: {failed[0].reason}",
            "Try again: what was answered is not asked twice.",
        )


_ENOUGH = 50
"""Labelled pairs from which a judge's skill and the weights of a jury are known well enough to be used."""
_ROWS = 40
"""Groups that are listed; of more, only those that the judge ranks wrongly."""


def _print_golden(results: Sequence[GoldenResult], judge: str) -> None:
    """Prints a row for each group, and what they tell of the judge's noise and a jury's weights, as settings."""
    shown = results if len(results) <= _ROWS else [result for result in results if result.violated][:_ROWS]
    rows: list[tuple[str, str, str]] = []
    for result in shown:
        if result.scores:
            tiers = [" · ".join(f"{name} {result.scores[name]:.2f}" for name in tier) for tier in result.group.order]
            rows.append((result.group.name, f"{result.right}/{len(result.group.pairs)}", " > ".join(tiers)))
        else:
            rows.append((result.group.name, "–", shorten(result.reason, 90, placeholder=" …")))
    judged = [result for result in results if result.scores]
    costs = [result.account.cost_usd for result in results if result.account.calls]
    known = [cost for cost in costs if cost is not None]
    is_known = len(known) == len(costs)
    account = [
        f"{sum(r.right for r in judged)} of {counted(sum(len(r.group.pairs) for r in judged), 'verdict')} right",
        f"{len(judged)} of {counted(len(results), 'group')} judged",
        f"judge {judge}",
        f"{counted(sum(r.account.calls for r in results), 'call')}, "
        f"{counted(sum(r.account.cached_calls for r in results), 'reply')} from the cassette",
        f"{sum(known):.4f} USD" if is_known else "cost unknown (set GAVEL_PRICES)",
    ]
    console = Console()
    print_table(console, ("group", "right", "as it should be"), rows, right=("right",))
    say(console, " · ".join(account))
    gaps = [each.scores[a] - each.scores[b] for each in results if each.scores for a, b in each.group.pairs]
    if apart := [gap for gap in gaps if gap]:
        share = sum(gap > 0 for gap in apart) / len(apart)
        pairs = counted(len(apart), "pair")
        typer.echo(f"Of {pairs} that it scored apart, the higher-scored was the better one in {share:.0%}.")
    weights = jury_weights(golden_scores(results))
    of_jury = len(weights) > 1
    if of_jury:
        kept = [f'{{model = "{model}", weight = {weight:.2f}}}' for model, weight in weights.items() if weight]
        typer.echo(f"Weights of the jury: models = [{', '.join(kept)}]")
        if left_out := [model for model, weight in weights.items() if not weight]:
            typer.echo(f"Leave out, since they rank these groups no better than chance: {', '.join(left_out)}")
    if prior := learnt_prior(with_weights(results, weights) if of_jury else results):
        figures = ", ".join(f"{name} = {value:.5g}" for name, value in prior.model_dump(exclude_none=True).items())
        whose = "its errors are like with these weights" if of_jury else "its errors are like"
        typer.echo(f"What {whose}: noise_prior = {{{figures}}}")
        if sum(len(result.group.members) - 1 for result in results if result.scores) < _ENOUGH:
            typer.echo(f"These are few: label at least {_ENOUGH} pairs, such as those that you will train on.")


app = group_app(
    "Draft a rubric, and test the judge itself.",
    {"rubric": rubric, "golden": with_options(golden, JudgeConfig, JUDGE_PARAMS), "report": report},
)
