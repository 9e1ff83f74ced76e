"""`gavel evaluate`: API models, checkpoints and bases on the held-out tasks of one or more scenarios."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.base.text import counted
from gavel.cli.cassette_option import with_cassette
from gavel.cli.heartbeat import waiting_for
from gavel.cli.interrupts import run_to_end
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
from gavel.scenarios.scenario import Scenario, ScenarioError
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
) -> None:
    """Measure models on held-out tasks: success, pass@k, a judge's scores and wins, cost.

    With several models a judge compares their attempts at each task in one group (--judge none: it does not); with
    one, only if --judge is given. What is sampled or judged is kept: the same command goes on, also with more models.
    Several scenarios, also of other systems (agentgym:URL), give one table and page of scenarios by models besides.
    """
    need_extra("train", "gavel evaluate")
    named = None if models is None else [name.strip() for name in models.split(",") if name.strip()]
    run_to_end(
        _evaluate_all(sources, values, named, samples, fresh, out, assignments),
        "What is sampled and judged is kept; the same command goes on from there.",
    )


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

    with waiting_for(TRAINER):
        from gavel.cli.evaluate_session import evaluate_models, folder_of, folder_of_all
        from gavel.cli.evaluate_table import print_model_table, print_scenario_table
        from gavel.cli.evaluated_models import model_named, own_model
        from gavel.reports.model_table import ScenarioTable, write_scenario_table
    from gavel.cli.wait_display import WaitDisplay
    from gavel.llm.budget import Budget

    register_likelihood()
    console = Console()
    asked = None if values["judge"] == _NO_JUDGE else values["judge"]
    wants_judge = asked is not None or (len(named or ()) > 1 and values["judge"] != _NO_JUDGE)
    budgets: dict[tuple[float | None, int | None], Budget] = {}
    prepared: list[tuple[str, Scenario, RunConfig, Judge | None, list[SampledModel]]] = []
    failed: dict[str, GavelError] = {}
    for source in sources:
        given = {**values, "tasks": values["tasks"] or _TASKS, "judge": asked}
        config = run_config(source, given, assignments, flags=_FLAGS)
        try:
            scenario = scenario_named(config.scenario)
        except ScenarioError as error:  # such as a world whose server is down
            failed[source] = error
            continue
        if any(scenario.name == other.name for _, other, *_ in prepared):
            raise GavelError(
                f"two of the scenarios are called {scenario.name}: their episodes would be mixed up.",
                "Evaluate them one after the other, each with a GAVEL_RUNS of its own.",
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
        prepared.append((source, scenario, config, judge, chosen))
    if (judge := next((judge for _, _, _, judge, _ in prepared if judge is not None), None)) is not None:
        announce_stand_in(judge.names)
    tables: list[ModelTable] = []
    for source, scenario, config, judge, chosen in prepared:
        console.print(plain(f"Gavel · {scenario.name} · {', '.join(model.name for model in chosen)}"), soft_wrap=True)
        try:
            table = await evaluate_models(
                scenario,
                chosen,
                config,
                judge,
                config.loop.final_tasks,
                samples,
                fresh=fresh,
                out=out if out is None or len(sources) == 1 else out / scenario.name,
                follower=WaitDisplay(console),
            )
        except GavelError as error:
            failed[source] = error
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


app = single_command(with_options(evaluate, RunConfig, _FLAGS))
