"""`gavel train` and `gavel evaluate`: a scenario, a model and a judge, wired to a backend and a display."""

import re

from rich.console import Console
from rich.table import Table

from gavel.display import RunDisplay
from judge.judge import Judge
from scenarios.scenario import Scenario
from trainer.config import LoopConfig, TrainConfig
from trainer.embedded import EMBEDDED_POLICY
from trainer.evaluation import evaluate, interval
from trainer.local import LocalBackend
from trainer.loop import EVALUATION, train_scenario
from trainer.model import TrainableModel
from trainer.run_directory import runs_root

_EMBEDDED_RATE = 2e-3
_COUNTS = ("step", "split", "time", "trajectories", "exceptions", "failed")


def default_learning_rate(base_model: str) -> float:
    """Peak rate when the user names none: a model of a few hundred thousand parameters needs far larger steps."""
    return _EMBEDDED_RATE if base_model == EMBEDDED_POLICY else TrainConfig().learning_rate


def trainable(scenario: Scenario, base_model: str, name: str | None) -> TrainableModel:
    """The model of a run: project = the scenario, name = as given, else after the base model."""
    after_model = re.sub(r"[^\w.-]+", "-", base_model.rstrip("/").split("/")[-1]).lower()
    return TrainableModel(name=name or after_model, project=scenario.name, base_model=base_model)


async def run_training(
    model: TrainableModel, scenario: Scenario, judge: Judge, loop: LoopConfig, config: TrainConfig, console: Console
) -> None:
    """Trains until `loop.steps`, going on with an earlier run, and prints a table of before and after."""
    async with LocalBackend() as backend:
        await model.register(backend)
        start = await model.get_step()
        names = ", ".join(str(juror.model) for juror in judge.jurors)
        went_on = f" · going on after step {start}" if start else ""
        console.print(
            f"Gavel · {scenario.name} · {model.base_model} · judge {names}{went_on}", highlight=False, soft_wrap=True
        )
        first = next((row.get("success") for row in backend.history(model, EVALUATION) if row["step"] == 0), None)
        display = RunDisplay(console, loop.steps, start, first)
        with display.shown():
            await train_scenario(model, scenario, judge, loop, config, display)
        points = backend.history(model, EVALUATION)
    if points:
        console.print(before_after(points[0], points[-1]))
    console.print(f"Run: {runs_root() / model.project / model.name}", highlight=False, soft_wrap=True)


async def run_evaluation(model: TrainableModel, scenario: Scenario, loop: LoopConfig, console: Console) -> None:
    """Prints the measures of the newest policy on held-out tasks."""
    async with LocalBackend() as backend:
        await model.register(backend)
        console.print(f"Gavel · {scenario.name} · {model.get_inference_name()}", highlight=False, soft_wrap=True)
        evaluation = await evaluate(model, scenario, loop.final_tasks, loop)
    table = Table(box=None)
    table.add_column(f"{evaluation.tasks} held-out tasks")
    table.add_column("mean", justify="right")
    for name, value in evaluation.measures.items():
        width = f" ± {interval(value, evaluation.tasks):.3f}" if name == "success" else ""
        table.add_row(name.replace("_", " "), f"{value:.3f}{width}")
    console.print(table)


def before_after(first: dict[str, float], last: dict[str, float]) -> Table:
    """The measures of two evaluations (rows of the metrics log) side by side."""
    table = Table(box=None)
    table.add_column(f"{last['trajectories']:.0f} held-out tasks")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for name, value in last.items():
        if name not in _COUNTS:
            table.add_row(name.replace("_", " "), f"{first.get(name, float('nan')):.2f}", f"{value:.2f}")
    return table
