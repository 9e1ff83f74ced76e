"""`gavel evaluate` and `gavel.evaluate`: models on the same held-out tasks, measured, and compared by a judge.

    table = await gavel.evaluate("returns_desk", models=["base:embedded/returns-desk", "openai/gpt-5-mini"])
    table["openai/gpt-5-mini"].success

Episodes and judgements are kept under runs/evaluations/<scenario>/; the same call, also with further models or tasks,
samples and judges only what is missing.
"""

import contextlib
import hashlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.base.files import locked
from gavel.base.text import counted
from gavel.cli.compare import settings_of
from gavel.cli.evaluated_models import find_model, find_own_model, model_given
from gavel.cli.interrupts import run_to_end
from gavel.cli.named import names_in, scenario_named
from gavel.cli.options import (
    Assignments,
    DryRun,
    Flag,
    announce_stand_in,
    check_stand_in,
    run_config,
    run_flags,
    settings_command,
    with_cassette,
    with_default_judge,
)
from gavel.cli.terminal import print_table, say, show_progress, status_of
from gavel.cli.training import print_run_estimates, read_seen_lengths
from gavel.judge.config import JudgeConfig
from gavel.judge.estimate import Estimate
from gavel.judge.judge import Judge
from gavel.judge.rubric import Rubric
from gavel.llm.budget import Budget, price, prices_from_environment
from gavel.reports.model_table import (
    ModelRow,
    ModelTable,
    ScenarioTable,
    cost_text,
    figure,
    model_row,
    outcome,
    seconds_of,
    write_model_table,
    write_scenario_table,
)
from gavel.scenarios.chat_model import ChatModel
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task
from gavel.trainer.loop.evaluation import EvaluationError, measure
from gavel.trainer.loop.model_samples import (
    COST,
    Sample,
    SampledModel,
    joint_groups,
    judge_together,
    judged_before,
    judged_file,
    sample_missing,
    stored_samples,
    wanted_samples,
)
from gavel.trainer.run_config import RunConfig
from gavel.trainer.runs.run_directory import run_path, runs_root

_TASKS = 256
_LONGEST_NAME = 120
_NO_JUDGE = "none"
_FLAGS = [
    *run_flags("model", "--temperature", "engine", "judge"),
    Flag("loop.final_tasks", "--tasks", _TASKS),
]


def evaluate_command(
    sources: Annotated[
        list[str], typer.Argument(metavar="SCENARIO…", help="Shipped ones, file.py[:variable], or run.toml.")
    ],
    values: Mapping[str, Any],
    models: Annotated[
        str | None, typer.Option(help="API models, desk/clerk@12, base:NAME, with commas. Default: the run's newest.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples of each task: pass@k for k up to it.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Sample and judge anew what is kept.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Of the report. Default: runs/evaluations/SCENARIO, or …/A+B.")
    ] = None,
    assignments: Assignments = None,
    dry_run: DryRun = False,
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
    asked = None if values["judge"] == _NO_JUDGE else values["judge"]
    judged = asked is not None or (values["judge"] is None and len(named or ()) > 1)
    given = {**values, "tasks": values["tasks"] or _TASKS, "judge": asked}
    budgets: dict[tuple[float | None, int | None], Budget] = {}

    async def evaluate_all() -> None:
        planned: dict[str, _Evaluation] = {}
        failed: dict[str, GavelError] = {}
        for source in sources:
            asked_for = run_config(source, given, assignments, flags=_FLAGS)
            config = asked_for.resolved()
            try:
                scenario = scenario_named(config.scenario)
            except ScenarioError as error:  # such as a world whose server is down
                failed[source] = error
                continue
            if any(scenario.name == other.scenario.name for other in planned.values()):
                raise GavelError(f"two scenarios are called {scenario.name}.", "Name each scenario once.")
            if dry_run and config.backend.url is not None:
                raise GavelError(
                    f"--dry-run does not ask {config.backend.url} for its policy.",
                    "Leave --dry-run out, and bound the judge: --max-cost 1.",
                )
            there = len(scenario.tasks("held_out"))
            if (values["tasks"] or 0) > there:
                typer.echo(f"{scenario.name} has {counted(there, 'held-out task')}: all of them are taken.", err=True)
            limits = config.judge.max_cost_usd, config.judge.max_tokens
            budget = budgets.setdefault(limits, Budget(*limits))  # of all scenarios together
            judge = scoring_judge(config.judge, scenario, budget) if judged else None
            if named is None:
                models = [await find_own_model(scenario, config, asked_for, budget)]
            else:
                models = [find_model(name, scenario, config, budget) for name in named]
            planned[source] = _Evaluation(scenario, models, config, judge, config.loop.final_tasks, samples, fresh)
        announce_stand_in([name for each in [*planned.values()][:1] if each.judge for name in each.judge.names])
        if dry_run:
            for error in failed.values():
                raise error
            for each in planned.values():
                await each.print_estimate()
            return
        console, tables = Console(), list[ModelTable]()
        for source, each in planned.items():
            say(console, f"Gavel · {each.scenario.name} · {', '.join(model.name for model in each.models)}")
            try:
                table = await each.run(console, out if out is None or len(sources) == 1 else out / each.scenario.name)
            except GavelError as error:
                failed[source] = error
                continue
            finally:
                if each.judge is not None and each.judge.cassette is not None:
                    each.judge.cassette.close()
            print_model_table(console, table)
            tables.append(table)
        if not tables:
            raise next(iter(failed.values()))
        if len(sources) > 1:
            reasons = {source: error.message for source, error in failed.items()}
            whole = ScenarioTable(tables, out or folder_of([table.scenario for table in tables]), reasons)
            write_scenario_table(whole)
            print_scenario_table(console, whole)
        if failed:
            first, share = next(iter(failed.values())), f"{counted(len(failed), 'scenario')} of {len(sources)}"
            raise GavelError(
                f"{share} could not be evaluated; the first: {first.message}",
                f"{first.remedy} The same command goes on with what is missing.",
            )

    run_to_end(evaluate_all(), "What is sampled and judged is kept; the same command goes on from there.")


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """Models on held-out tasks of one scenario. Raises `GavelError` for a model that is named twice."""

    scenario: Scenario
    models: Sequence[SampledModel]
    config: RunConfig
    judge: Judge | None
    tasks: int
    samples: int
    fresh: bool = False
    """Nothing that is kept is used."""

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        if not names or self.tasks < 1 or self.samples < 1:
            raise GavelError("there is nothing to evaluate.", "Name a model, and at least one task and sample.")
        if doubled := next((name for name in names if names.count(name) > 1), None):
            raise GavelError(f"{doubled} is named twice.", "Name each model once.")

    @property
    def folder(self) -> Path:
        return folder_of([self.scenario.name])

    def chosen(self) -> list[Task]:
        return self.scenario.sample("held_out", self.tasks, seed=self.config.loop.seed)

    def kept(self, model: SampledModel) -> dict[Sample, TrajectoryGroup]:
        """The wanted episodes that the model's file holds, by task and number."""
        tasks = self.chosen()
        stored = stored_samples(model.file(self.folder, self.scenario, self.config.loop), tasks)
        wanted = [(task.id, number) for task, number in wanted_samples(tasks, self.samples)]
        return {sample: stored[sample] for sample in wanted if sample in stored}

    async def print_estimate(self) -> None:
        """Prints what is missing, with the calls, tokens and dollars of API models and of the judge."""
        scenario, loop, tasks = self.scenario, self.config.loop, self.chosen()
        lengths = read_seen_lengths(scenario, self.config.backend.max_context)
        turns = "with all turns" if scenario.rollout is None else "if its own rollout takes as many turns"
        kept = {model.name: {} if self.fresh else self.kept(model) for model in self.models}
        for model in self.models:
            episodes = len(tasks) * self.samples - len(kept[model.name])
            typer.echo(f"{scenario.name}, {model.name}: {counted(episodes, 'episode')} to sample.")
            rate = price(model.name, prices_from_environment()) if "api" in model.identity else None
            for label, length in lengths.items() if "api" in model.identity else ():
                replies = episodes * length // 2
                estimate = Estimate(
                    calls=episodes * scenario.max_turns,
                    prompt_tokens=replies * scenario.max_turns,
                    completion_tokens=replies,
                    cost_usd=replies * (scenario.max_turns * rate[0] + rate[1]) / 1e6 if rate else 0.0,
                    unpriced=() if rate else (model.name,),
                )
                typer.echo(f"{label} ({counted(length, 'token')} each), {turns}: {estimate.words}")
        if self.judge is not None:
            judged = {} if self.fresh else judged_before(joint_groups(kept), judged_file(self.judge, self.folder))
            size = {"tasks_per_step": len(tasks) - len(judged), "group_size": len(kept) * self.samples}
            loop = loop.model_copy(update={**size, "steps": 1, "refill": 0})
            await print_run_estimates([("The judge:", self.judge, loop, 1)], None, lengths)

    async def run(self, console: Console | None = None, out: Path | None = None) -> ModelTable:
        """Samples and judges what is missing, and writes the report to `out`."""
        console, judge, folder = console or Console(quiet=True, force_terminal=False), self.judge, self.folder
        with _held(folder):
            if judge is not None:
                await judge.probe(replayed=False)
            failed = {model.name: await self._sample(model, console) for model in self.models}
            # Read back from the files, so that a later evaluation finds their judgements.
            episodes = {model.name: self.kept(model) for model in self.models}
            groups: list[TrajectoryGroup] = []
            if judge is not None:
                groups, file = joint_groups(episodes), judged_file(judge, folder)
                if self.fresh:
                    file.unlink(missing_ok=True)
                missing = len(groups) - len(judged_before(groups, file))
                with show_progress(console, "judging", missing, "tasks", status_of(judge)) as advance:
                    groups = await judge_together(judge, groups, file, advance)
        rows: list[ModelRow] = []
        for name, samples in episodes.items():
            for member in (member for group in samples.values() for member in group):
                member.metrics |= measure(self.scenario, member)
            rows.append(model_row(name, samples, groups, failed[name]))
        table = ModelTable(
            scenario=self.scenario.name,
            rows=rows,
            tasks=len(self.chosen()),
            samples=self.samples,
            judges=judge.names if judge is not None else [],
            judge_cost=str(judge.budget.cost) if judge is not None and judge.asks_servers else "",
            directory=out or folder,
        )
        write_model_table(table)
        return table

    async def _sample(self, model: SampledModel, console: Console) -> int:
        """Samples the episodes that are missing; gives the number of those that failed."""
        file = model.file(self.folder, self.scenario, self.config.loop)
        if self.fresh:
            file.unlink(missing_ok=True)
        kept, wanted = self.kept(model), wanted_samples(self.chosen(), self.samples)
        missing = [(task, number) for task, number in wanted if (task.id, number) not in kept]
        spent, failures = 0.0, 0

        def status() -> str:
            parts = {f"{cost_text(spent)} USD": spent, f"{len(kept)} kept before": kept, f"{failures} failed": failures}
            return " · ".join(part for part, shown in parts.items() if shown)

        def done(group: TrajectoryGroup | None) -> None:
            nonlocal spent, failures
            spent += 0.0 if group is None else float(group.metrics.get(COST, 0.0))
            failures += group is None
            advance()

        with show_progress(console, model.name, len(missing), "episodes", status) as advance:
            reasons = await sample_missing(model, missing, file, self.config.loop, done)
        if reasons and not self.kept(model):
            raise EvaluationError(
                f"every rollout of {model.name} failed; the first: {reasons[0]}",
                "Mend it, and run the same command again: episodes that are kept are not sampled again.",
            )
        if reasons:
            say(console, f"{model.name}: the first that failed: {reasons[0]}")
        return len(reasons)


def print_model_table(console: Console, table: ModelTable) -> None:
    """A row for each model; of a single one with all of its measures. Then what is missing, costs, and the report."""
    for line in outcome(table):
        say(console, line)
    samples = f", {counted(table.samples, 'sample')} of each" if table.samples > 1 else ""
    say(console, f"{counted(table.tasks, 'held-out task')}{samples} (95 % intervals)")
    rows = table.rows
    columns: dict[str, list[str]] = {"": [row.name for row in rows]}
    if known := any(row.success.tasks for row in rows):
        columns["success"] = [row.success.short() for row in rows]
    if known and table.samples > 1:
        most = [row.pass_at.get(table.samples) for row in rows]
        columns[f"pass@{table.samples}"] = ["–" if each is None else each.short() for each in most]
    if table.judges:
        columns["judge"] = [row.score.short() for row in rows]
    if table.judges and len(rows) > 1:
        columns["wins"] = [row.wins.short() for row in rows]
    if len(rows) == 1:
        measures = {**rows[0].measures, "truncated": rows[0].truncated}
        columns |= {name.replace("_", " "): [f"{value:.3f}"] for name, value in measures.items()}
    columns["USD"] = [cost_text(row.cost_usd) for row in rows]
    print_table(console, list(columns), zip(*columns.values(), strict=True), right=columns.keys() - {""})
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
    headings = [f"{each.scenario}{' (judge)' if each.by_judge else ''}" for each in table.tables]
    lines: list[list[str]] = []
    for name in table.models:
        rows = table.rows(name)
        cells = [figure(row).short() for row in rows] + ([table.mean(name).short()] if table.has_means else [])
        lines.append([name, *cells, cost_text(table.cost(name)), seconds_of(*rows)])
    headings += [*(["mean"] if table.has_means else []), "USD", "an episode"]
    print_table(console, ["", *headings], lines, right=headings)
    for name, reason in table.failed.items():
        say(console, f"{name} was not evaluated: {reason}")
    say(console, f"Report: {table.directory / 'report.html'}")


async def evaluate(
    scenario: str | Scenario,
    *,
    models: Sequence[str | ChatModel],
    judge: str | Judge | None = None,
    tasks: int = _TASKS,
    samples: int = 1,
    max_cost: float | None = None,
    settings: RunConfig | None = None,
) -> ModelTable:
    """Lets models work on the same held-out tasks, and compares them by success and by the judge's scores.

    `models`: API models (openai/gpt-5-mini), checkpoints (desk/clerk, desk/clerk@12, a directory), untrained bases
    (base:NAME), and models that the program holds. `judge`: a model's name, a `gavel.Judge` (best with
    alone="scored"), or None for no judge. `samples` of each task: pass@k for k up to it. `max_cost`: US dollars of API
    models and a judge that is named. `settings`: of sampling and engine, as a run has them.

    Episodes that are kept are not sampled again. Writes report.html and evaluation.json to
    runs/evaluations/<scenario>. Raises `GavelError`.
    """
    world = scenario if isinstance(scenario, Scenario) else scenario_named(scenario)
    config = (settings or settings_of(scenario if isinstance(scenario, str) else scenario.name)).resolved()
    budget = Budget(max_cost)
    judge = None if judge == _NO_JUDGE else judge
    if isinstance(judge, str):
        named = config.judge.model_copy(update={"models": judge})
        judge = scoring_judge(named, world, budget)
    elif judge is not None:
        if world.rubric is not None and judge.rubric == Rubric.of(None):
            judge = judge.with_rubric(world.rubric)
        check_stand_in(judge, world)
    chosen = [
        find_model(each, world, config, budget) if isinstance(each, str) else model_given(each, world, config)
        for each in ([models] if isinstance(models, str) else models)
    ]
    return await _Evaluation(world, chosen, config, judge, tasks, samples).run()


def scoring_judge(settings: JudgeConfig, scenario: Scenario, budget: Budget) -> Judge:
    """The judge of an evaluation, which scores single attempts, too. Raises `JudgeError`."""
    settings = with_default_judge(settings).model_copy(update={"alone": "scored"})
    judge = with_cassette(settings, folder_of([scenario.name])).build(scenario.rubric, budget=budget)
    check_stand_in(judge, scenario)
    return judge


def folder_of(scenarios: Sequence[str]) -> Path:
    """The directory of a scenario's evaluations, or of the common report of several."""
    name = "+".join(scenarios)
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return run_path(runs_root() / "evaluations", name, "x").parent


@contextlib.contextmanager
def _held(folder: Path) -> Generator[None]:
    """Holds the directory's lock: two evaluations at once would sample the same episodes."""
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder))
        except BlockingIOError as error:
            raise GavelError(
                f"another evaluation is writing to {folder}.", "Wait for its end, or set GAVEL_RUNS for this one."
            ) from error
        except OSError as error:
            raise GavelError(
                f"{folder} cannot be written: {error.strerror or error}", "Set GAVEL_RUNS to a directory that can be."
            ) from error
        yield


app = settings_command(evaluate_command, RunConfig, _FLAGS)
