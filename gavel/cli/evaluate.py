"""`gavel evaluate`: API models, checkpoints and bases on the held-out tasks of one or more scenarios."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.base.text import counted
from gavel.cli.evaluate_session import (
    count_missing_work,
    evaluate_models,
    find_model,
    find_own_model,
    folder_of_all,
    scoring_judge,
)
from gavel.cli.lazy_commands import single_command
from gavel.cli.named import names_in, scenario_named
from gavel.cli.options import (
    ENGINE_FLAGS,
    MODEL_FLAGS,
    RUN_JUDGE_FLAGS,
    START_FLAG,
    Assignments,
    Flag,
    announce_stand_in,
    register_likelihood,
    run_config,
    with_options,
)
from gavel.cli.terminal import WaitDisplay, print_figures, print_table, run_interruptibly, run_to_end, say
from gavel.cli.training import check_base, episodes_estimate, print_run_estimates, read_seen_lengths
from gavel.judge.judge import Judge
from gavel.llm.budget import Budget
from gavel.reports.model_table import (
    ModelTable,
    ScenarioTable,
    by_judge,
    cost_text,
    figure,
    outcome,
    seconds_of,
    write_scenario_table,
)
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.trainer.config import LoopConfig
from gavel.trainer.loop.model_samples import SampledModel
from gavel.trainer.run_config import RunConfig

_TASKS = 256
_NO_JUDGE = "none"
_FLAGS = [
    *MODEL_FLAGS,
    START_FLAG,
    Flag("loop.final_tasks", "--tasks", _TASKS),
    Flag("loop.temperature", "--temperature"),
    *ENGINE_FLAGS,
    *RUN_JUDGE_FLAGS,
]


def evaluate(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SCENARIO…", help="Shipped scenarios, file.py, file.py:variable, or a run.toml."),
    ],
    values: Mapping[str, Any],
    models: Annotated[
        str | None,
        typer.Option(
            help="Models, separated by commas: API models (openai/gpt-5-mini), checkpoints (desk/clerk@12), bases "
            "(base:NAME). Default: the newest policy of the run, or its base."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples of each task: pass@k for k up to it.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Sample and judge anew what is kept.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory of the report. Default: runs/evaluations/SCENARIO; of several, …/A+B."),
    ] = None,
    assignments: Assignments = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what there is to sample and judge, and its cost; ask nothing.")
    ] = False,
) -> None:
    """Measure models on held-out tasks: success, pass@k, a judge's scores and wins, cost.

    With several models a judge compares their attempts at each task in one group (--judge none: it does not); with
    one, only if --judge is given. What is sampled or judged is kept: the same command goes on, also with more models.
    Several scenarios, also of other systems (agentgym:URL), give one table and page of scenarios by models besides.
    """
    need_extra("train", "gavel evaluate")
    named = None if models is None else names_in(models)
    if named == []:
        raise GavelError("--models names no model.", "Name one or several, separated by commas: --models desk/clerk@12")
    if dry_run:
        prepared, failed = run_interruptibly(_prepare(sources, values, named, assignments, dry_run=True))
        if failed:
            raise next(iter(failed.values()))
        return _print_estimate(prepared, samples, fresh=fresh)
    run_to_end(
        _evaluate_all(sources, values, named, samples, fresh, out, assignments),
        "What is sampled and judged is kept; the same command goes on from there.",
    )


@dataclass(frozen=True, slots=True)
class _Prepared:
    """One scenario to evaluate."""

    source: str
    scenario: Scenario
    config: RunConfig
    judge: Judge | None
    models: list[SampledModel]


async def _prepare(
    sources: list[str],
    values: Mapping[str, Any],
    named: list[str] | None,
    assignments: list[str] | None,
    *,
    dry_run: bool = False,
) -> tuple[list[_Prepared], dict[str, GavelError]]:
    """The scenarios that can be evaluated, and the errors of the others. Raises `GavelError` for an error that affects
    all of them.

    A `dry_run` asks no server and needs no key of a judge.
    """
    register_likelihood()
    asked = None if values["judge"] == _NO_JUDGE else values["judge"]
    wants_judge = asked is not None or (len(named or ()) > 1 and values["judge"] != _NO_JUDGE)
    budgets: dict[tuple[float | None, int | None], Budget] = {}
    prepared: list[_Prepared] = []
    failed: dict[str, GavelError] = {}
    for source in sources:
        given = {**values, "tasks": values["tasks"] or _TASKS, "judge": asked}
        asked_for = run_config(source, given, assignments, flags=_FLAGS)
        config = asked_for.resolved()
        try:
            scenario = scenario_named(config.scenario)
        except ScenarioError as error:  # such as a world whose server is down
            failed[source] = error
            continue
        if any(scenario.name == other.scenario.name for other in prepared):
            raise GavelError(
                f"two of the scenarios are called {scenario.name}: their episodes would be mixed up.",
                "Evaluate them one after the other, each with a GAVEL_RUNS of its own.",
            )
        if dry_run and config.backend.url is not None:
            raise GavelError(
                f"--dry-run does not ask {config.backend.url} for its policy.",
                "Leave --dry-run out, and bound the judge: --max-cost 1.",
            )
        limits = config.judge.max_cost_usd, config.judge.max_tokens
        budget = budgets.setdefault(limits, Budget(*limits))  # of all scenarios together
        judge = scoring_judge(config.judge, scenario, budget) if wants_judge else None
        if named is None:
            chosen = [await find_own_model(scenario, config, asked_for)]
        else:
            chosen = [find_model(name, scenario, config, budget) for name in named]
        prepared.append(_Prepared(source, scenario, config, judge, chosen))
    announce_stand_in([name for each in prepared[:1] if each.judge for name in each.judge.names])
    return prepared, failed


async def _evaluate_all(
    sources: list[str],
    values: Mapping[str, Any],
    named: list[str] | None,
    samples: int,
    fresh: bool,
    out: Path | None,
    assignments: list[str] | None,
) -> None:
    prepared, failed = await _prepare(sources, values, named, assignments)
    console = Console()
    tables: list[ModelTable] = []
    for each in prepared:
        scenario, config, judge = each.scenario, each.config, each.judge
        say(console, f"Gavel · {scenario.name} · {', '.join(model.name for model in each.models)}")
        try:
            table = await evaluate_models(
                scenario,
                each.models,
                config,
                judge,
                config.loop.final_tasks,
                samples,
                fresh=fresh,
                out=out if out is None or len(sources) == 1 else out / scenario.name,
                display=WaitDisplay(console),
            )
        except GavelError as error:
            failed[each.source] = error
            continue
        finally:
            if judge is not None and judge.cassette is not None:
                judge.cassette.close()
        print_model_table(console, table)
        tables.append(table)
    if not tables:
        raise next(iter(failed.values()))
    if len(sources) > 1:
        reasons = {source: error.message for source, error in failed.items()}
        whole = ScenarioTable(tables, out or folder_of_all([table.scenario for table in tables]), reasons)
        write_scenario_table(whole)
        print_scenario_table(console, whole)
    if failed:
        first = next(iter(failed.values()))
        raise GavelError(
            f"{counted(len(failed), 'scenario')} of {len(sources)} could not be evaluated; the first: {first.message}",
            f"{first.remedy} The same command goes on with what is missing.",
        )


def _print_estimate(prepared: Sequence[_Prepared], samples: int, *, fresh: bool) -> None:
    work = [
        count_missing_work(
            each.scenario, each.models, each.config, each.judge, each.config.loop.final_tasks, samples, fresh=fresh
        )
        for each in prepared
    ]
    for base in {str(model.identity["base"]) for each in prepared for model in each.models if "base" in model.identity}:
        check_base(base)
    estimates: list[tuple[str, Judge | None, LoopConfig, int]] = []
    tokens = read_seen_lengths(Mixture([each.scenario for each in prepared]), prepared[0].config.backend.max_context)
    for each, (missing, groups) in zip(prepared, work, strict=True):
        for model in each.models:
            episodes = missing[model.name]
            typer.echo(f"{each.scenario.name}, {model.name}: {counted(episodes, 'episode')} to sample.")
            if "api" not in model.identity or not episodes:
                continue
            if each.scenario.rollout is not None:
                typer.echo("What its own rollout asks the model cannot be estimated: bound it with --max-cost.")
                continue
            for label, length in tokens.items():
                estimate = episodes_estimate(model.name, episodes, each.scenario.max_turns, length)
                typer.echo(f"{label} ({counted(length, 'token')} each), with all turns: {estimate.words}")
        if each.judge is not None:
            size = {"steps": 1, "tasks_per_step": groups, "group_size": len(each.models) * samples, "refill": 0}
            heading = f"{each.scenario.name}, judge {', '.join(each.judge.names)}"
            estimates.append((heading, each.judge, each.config.loop.model_copy(update=size), 1))
    if estimates:
        print_run_estimates(estimates, tokens)
    else:
        typer.echo("No judge is asked.")


def print_model_table(console: Console, table: ModelTable) -> None:
    """A row for each model; with one model, a row for each figure. Then what is missing, costs, and the report."""
    for line in outcome(table):
        say(console, line)
    samples = f", {counted(table.samples, 'sample')} of each" if table.samples > 1 else ""
    heading = f"{counted(table.tasks, 'held-out task')}{samples}"
    known = any(row.success.tasks for row in table.rows)
    several = table.samples > 1 and known
    if len(table.rows) == 1:
        (row,) = table.rows
        figures = {"success": row.success.text(3)} if known else {}
        figures |= {f"pass@{k}": each.text(3) for k, each in row.pass_at.items() if several}
        figures |= {name.replace("_", " "): f"{value:.3f}" for name, value in row.measures.items()}
        figures["truncated"] = f"{row.truncated:.3f}"
        if table.judges:
            figures["judge's score"] = row.score.text(3)
        if row.cost_usd != 0:
            figures["USD"] = cost_text(row.cost_usd)
        mean = "mean (95 % interval)"
        print_table(console, (heading, mean), list(figures.items()), right=(mean,))
    else:
        say(console, f"{heading} (95 % intervals)")
        columns: dict[str, list[str]] = {"": [row.name for row in table.rows]}
        if known:
            columns["success"] = [row.success.short() for row in table.rows]
        if several:
            most = [row.pass_at.get(table.samples) for row in table.rows]
            columns[f"pass@{table.samples}"] = ["–" if each is None else each.short() for each in most]
        if table.judges:
            columns["judge"] = [row.score.short() for row in table.rows]
            columns["wins"] = [row.wins.short() for row in table.rows]
        columns["USD"] = [cost_text(row.cost_usd) for row in table.rows]
        print_figures(console, list(columns), list(zip(*columns.values(), strict=True)))
    for row in table.rows:
        if row.failed:
            say(console, f"{row.name}: {counted(row.failed, 'episode')} failed; the same command tries again")
        for reason, count in row.unscored.items():
            say(console, f"{row.name}: {count:,} unscored: {reason}")
    if table.judges:
        cost = f" · {table.judge_cost}" if table.judge_cost else ""
        say(console, f"Judge {', '.join(table.judges)}{cost}")
    say(console, f"Report: {table.directory / 'report.html'}")


def print_scenario_table(console: Console, table: ScenarioTable) -> None:
    """A row for each model: its success on each scenario (the judge's score where success is not known), the mean over
    scenarios, US dollars and the seconds of an episode. Then what could not be evaluated, and the report."""
    headings = [f"{each.scenario}{' (judge)' if by_judge(each) else ''}" for each in table.tables]
    several = sum(not by_judge(each) for each in table.tables) > 1
    lines: list[list[str]] = []
    for name in table.models:
        rows = [table.row(each, name) for each in table.tables]
        cells = [figure(row).short() for row in rows] + ([table.mean(name).short()] if several else [])
        lines.append([name, *cells, cost_text(table.cost(name)), seconds_of(*rows)])
    print_figures(console, ["", *headings, *(["mean"] if several else []), "USD", "an episode"], lines)
    for name, reason in table.failed.items():
        say(console, f"{name} was not evaluated: {reason}")
    say(console, f"Report: {table.directory / 'report.html'}")


app = single_command(with_options(evaluate, RunConfig, _FLAGS))
