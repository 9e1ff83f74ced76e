"""`gavel evaluate`: API models, checkpoints and bases on the held-out tasks of one or more scenarios."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gavel.cli.cassette_option import with_cassette
from gavel.cli.interrupts import run_to_end
from gavel.cli.lazy_commands import single_command
from gavel.cli.model_options import Flag, with_options
from gavel.cli.named_scenario import scenario_named
from gavel.cli.run_options import (
    ENGINE_FLAGS,
    JUDGE_FLAGS,
    MODEL_FLAGS,
    START_FLAG,
    Assignments,
    announce_stand_in,
    run_config,
)
from gavel.cli.terminal import TRAINER, loading, plain
from gavel.extras import need_extra
from gavel.llm.errors import GavelError
from gavel.trainer.run_config import RunConfig

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
        Path | None, typer.Option(help="Directory of the report. Default: runs/evaluations/SCENARIO.")
    ] = None,
    assignments: Assignments = None,
) -> None:
    """Measure models on held-out tasks: success, pass@k, a judge's scores and wins, cost.

    With several models a judge compares their attempts at each task in one group (--judge none: it does not); with
    one, only if --judge is given. What is sampled or judged is kept: the same command goes on, also with more models.
    """
    need_extra("train", "gavel evaluate")
    named = None if models is None else [name.strip() for name in models.split(",") if name.strip()]
    if out is not None and len(sources) > 1:
        raise GavelError("--out is for the report of one scenario.", "Name one scenario, or leave --out out.")
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

    with loading(TRAINER):
        from gavel.cli.evaluate_session import evaluate_models, folder_of
        from gavel.cli.evaluate_table import print_model_table, print_over_scenarios
        from gavel.cli.evaluated_models import model_named, own_model
    from gavel.cli.wait_display import WaitDisplay
    from gavel.llm.budget import Budget

    console, tables = Console(), []
    asked = None if values["judge"] == _NO_JUDGE else values["judge"]
    wants_judge = asked is not None or (len(named or ()) > 1 and values["judge"] != _NO_JUDGE)
    for source in sources:
        given = {**values, "tasks": values["tasks"] or _TASKS, "judge": asked}
        config = run_config(source, given, assignments, flags=_FLAGS)
        scenario = scenario_named(config.scenario)
        must_exist, config = config.model.name is not None, config.resolved()
        budget = Budget(config.judge.max_cost_usd, config.judge.max_tokens)
        judge = None
        if wants_judge:
            settings = config.judge.model_copy(update={"alone": "scored"})
            judge = with_cassette(settings, folder_of(scenario)).build(scenario.rubric, budget=budget)
            announce_stand_in(judge.names)
        if named is None:
            chosen = [await own_model(scenario, config, must_exist=must_exist)]
        else:
            chosen = [model_named(name, scenario, config, budget) for name in named]
        console.print(plain(f"Gavel · {scenario.name} · {', '.join(model.name for model in chosen)}"), soft_wrap=True)
        table = await evaluate_models(
            scenario,
            chosen,
            config,
            judge,
            config.loop.final_tasks,
            samples,
            fresh=fresh,
            out=out,
            follower=WaitDisplay(console),
        )
        if judge is not None and judge.cassette is not None:
            judge.cassette.close()
        print_model_table(console, table)
        tables.append(table)
    if len(tables) > 1:
        print_over_scenarios(console, tables)


app = single_command(with_options(evaluate, RunConfig, _FLAGS))
