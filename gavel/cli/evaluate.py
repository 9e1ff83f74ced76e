"""`gavel evaluate`: API models, checkpoints and bases on the held-out tasks of one or more scenarios."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.base.text import counted
from gavel.cli.cassette_option import with_cassette
from gavel.cli.dry_run import check_base, episodes_estimate, print_run_estimates, seen_lengths
from gavel.cli.heartbeat import waiting_for
from gavel.cli.interrupts import run_interruptibly, run_to_end
from gavel.cli.lazy_commands import single_command
from gavel.cli.likelihood_model import register_likelihood
from gavel.cli.model_options import Flag, with_options
from gavel.cli.named_scenario import scenario_named
from gavel.cli.run_options import (
    ENGINE_FLAGS,
    JUDGE_FLAGS,
    MODEL_FLAGS,
    START_FLAG,
    Assignments,
    announce_stand_in,
    check_stand_in,
    run_config,
)
from gavel.cli.terminal import TRAINER, plain
from gavel.scenarios.mixture import Mixture
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.trainer.config import LoopConfig
from gavel.trainer.run_config import RunConfig

if TYPE_CHECKING:
    from gavel.judge.judge import Judge
    from gavel.reports.model_table import ModelTable
    from gavel.trainer.loop.model_samples import SampledModel

_TASKS = 256
_NO_JUDGE = "none"
_JUDGE_FLAGS = [replace(flag, path=f"judge.{flag.path}") for flag in JUDGE_FLAGS]
_FLAGS = [
    *MODEL_FLAGS,
    START_FLAG,
    Flag("loop.final_tasks", "--tasks", _TASKS),
    Flag("loop.temperature", "--temperature"),
    *ENGINE_FLAGS,
    *_JUDGE_FLAGS,
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
    named = None if models is None else [name.strip() for name in models.split(",") if name.strip()]
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
    judge: "Judge | None"
    models: "list[SampledModel]"


async def _prepare(
    sources: list[str],
    values: Mapping[str, Any],
    named: list[str] | None,
    assignments: list[str] | None,
    *,
    dry_run: bool = False,
) -> tuple[list[_Prepared], dict[str, GavelError]]:
    """What can be evaluated, and why the others cannot. Raises `GavelError` for what no scenario can be evaluated with.

    A `dry_run` asks no server and needs no key of a judge.
    """
    with waiting_for(TRAINER):
        from gavel.cli.evaluate_session import folder_of
        from gavel.cli.evaluated_models import model_named, own_model
    from gavel.llm.budget import Budget

    register_likelihood()
    asked = None if values["judge"] == _NO_JUDGE else values["judge"]
    wants_judge = asked is not None or (len(named or ()) > 1 and values["judge"] != _NO_JUDGE)
    budgets: dict[tuple[float | None, int | None], Budget] = {}
    prepared: list[_Prepared] = []
    failed: dict[str, GavelError] = {}
    for source in sources:
        given = {**values, "tasks": values["tasks"] or _TASKS, "judge": asked}
        config = run_config(source, given, assignments, flags=_FLAGS)
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
        must_exist, config = config.model.name is not None, config.resolved()
        limits = config.judge.max_cost_usd, config.judge.max_tokens
        budget = budgets.setdefault(limits, Budget(*limits))  # of all scenarios together
        judge = None
        if wants_judge:
            settings = config.judge.model_copy(update={"alone": "scored"})
            judge = with_cassette(settings, folder_of(scenario)).build(scenario.rubric, budget=budget)
            check_stand_in(judge, scenario)
        if named is None:
            chosen = [await own_model(scenario, config, must_exist=must_exist)]
        else:
            chosen = [model_named(name, scenario, config, budget) for name in named]
        prepared.append(_Prepared(source, scenario, config, judge, chosen))
    if (judge := next((each.judge for each in prepared if each.judge is not None), None)) is not None:
        announce_stand_in(judge.names)
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
    from rich.console import Console

    prepared, failed = await _prepare(sources, values, named, assignments)
    from gavel.cli.evaluate_session import evaluate_models, folder_of_all
    from gavel.cli.evaluate_table import print_model_table, print_scenario_table
    from gavel.cli.wait_display import WaitDisplay
    from gavel.reports.model_table import ScenarioTable, write_scenario_table

    console = Console()
    tables: list[ModelTable] = []
    for each in prepared:
        scenario, config, judge = each.scenario, each.config, each.judge
        console.print(
            plain(f"Gavel · {scenario.name} · {', '.join(model.name for model in each.models)}"), soft_wrap=True
        )
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
                follower=WaitDisplay(console),
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
    from gavel.cli.evaluate_session import missing_work

    work = [
        missing_work(
            each.scenario, each.models, each.config, each.judge, each.config.loop.final_tasks, samples, fresh=fresh
        )
        for each in prepared
    ]
    for base in {str(model.identity["base"]) for each in prepared for model in each.models if "base" in model.identity}:
        check_base(base)
    estimates: list[tuple[str, Judge | None, LoopConfig, int]] = []
    tokens = seen_lengths(Mixture([each.scenario for each in prepared]), prepared[0].config.backend.max_context)
    for each, missing in zip(prepared, work, strict=True):
        for model in each.models:
            episodes = missing.episodes[model.name]
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
            judging = {
                "steps": 1,
                "tasks_per_step": missing.groups,
                "group_size": len(each.models) * samples,
                "refill": 0,
            }
            loop = each.config.loop.model_copy(update=judging)
            estimates.append((f"{each.scenario.name}, judge {', '.join(each.judge.names)}", each.judge, loop, 1))
    if estimates:
        print_run_estimates(estimates, tokens)
    else:
        typer.echo("No judge is asked.")


app = single_command(with_options(evaluate, RunConfig, _FLAGS))
