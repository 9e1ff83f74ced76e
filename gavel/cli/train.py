"""`gavel train` and `gavel evaluate`: a scenario, a model and a judge, wired to a backend and a display."""

import re
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gavel.cli.display import RunDisplay
from gavel.cli.settings import STAND_IN
from gavel.errors import GavelError
from gavel.judge.judge import Judge
from gavel.judge.offline.rules import read_rules
from gavel.llm.local_models import model_id
from gavel.scenarios.scenario import Scenario
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import EngineChoice, LoopConfig, TrainConfig, VllmSettings
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.loop.evaluation import evaluate, interval
from gavel.trainer.loop.train_loop import EVALUATION, train_scenario
from gavel.trainer.model import TrainableModel
from gavel.trainer.runs.run_directory import RunDirectoryError, runs_root

_EMBEDDED_RATE = 2e-3
_COUNTS = ("step", "split", "time", "trajectories", "exceptions", "failed")


def default_learning_rate(base_model: str) -> float:
    """Peak rate when the user names none: a model of a few hundred thousand parameters needs far larger steps."""
    return _EMBEDDED_RATE if base_model == EMBEDDED_POLICY else TrainConfig().learning_rate


class EngineChoiceError(GavelError):
    """No engine is known by this name."""


def engine_choice(name: str) -> EngineChoice:
    """What `--engine` names. Raises `EngineChoiceError`."""
    match name:
        case "transformers" | "vllm":
            return name
        case _ if name.startswith(("http://", "https://")):
            return VllmSettings(url=name)
        case _:
            raise EngineChoiceError(
                f"there is no engine {name!r}",
                "Name transformers, vllm, or the address of a vLLM server such as http://127.0.0.1:8000.",
            )


def trainable(scenario: Scenario, base_model: str, name: str | None) -> TrainableModel:
    """The model of a run: project = the scenario, name = as given, else after the base model."""
    after_model = re.sub(r"[^\w.-]+", "-", base_model.rstrip("/").split("/")[-1]).lower()
    return TrainableModel(name=name or after_model, project=scenario.name, base_model=base_model)


async def run_training(
    model: TrainableModel,
    scenario: Scenario,
    judge: Judge,
    loop: LoopConfig,
    config: TrainConfig,
    console: Console,
    backend: LocalBackend,
) -> None:
    """Trains until `loop.steps`, going on with an earlier run, and prints a table of before and after."""
    async with backend:
        await model.register(backend)
        start = await model.get_step()
        names = ", ".join(judge.names)
        went_on = f" · going on after step {start}" if start else ""
        if start >= loop.steps:
            went_on = f" · finished after step {start}; for more, raise --steps"
        _say(console, f"Gavel · {scenario.name} · {model.base_model} · judge {names}{went_on}")
        if judge.names == [model_id(STAND_IN)] and not read_rules(judge.rubric.words):
            _say(console, "The stand-in finds no rule in this rubric that it can check: it makes general checks only.")
        first = next((row.get("success") for row in backend.history(model, EVALUATION) if row["step"] == 0), None)
        display = RunDisplay(console, loop.steps, start, first)
        with display.shown():
            await train_scenario(model, scenario, judge, loop, config, display)
        points = backend.history(model, EVALUATION)
    if points:
        console.print(before_after(points[0], points[-1]))
    _say(console, f"Run: {_directory(model)}")


async def run_evaluation(
    model: TrainableModel,
    scenario: Scenario,
    loop: LoopConfig,
    console: Console,
    max_context: int,
    engine: EngineChoice,
    *,
    must_exist: bool,
) -> None:
    """Prints the measures of the newest policy on held-out tasks; of the base, where there is no run yet.

    With `must_exist`, raises `RunDirectoryError` when there is none.
    """
    exists = (_directory(model) / "model.json").is_file()
    if must_exist and not exists:
        runs = sorted(path.parent.name for path in _directory(model).parent.glob("*/model.json"))
        raise RunDirectoryError(
            f"there is no run {model.name} of {scenario.name}; there are: {', '.join(runs) or 'none'}",
            "Name one of these, or leave --name out.",
        )
    with tempfile.TemporaryDirectory() as elsewhere:  # measuring a base leaves no run behind
        async with LocalBackend(None if exists else elsewhere, engine=engine, max_context=max_context) as backend:
            await model.register(backend)
            _say(console, f"Gavel · {scenario.name} · {model.get_inference_name()}")
            evaluation = await evaluate(model, scenario, loop.final_tasks, loop)
    table = Table(box=None)
    table.add_column(f"{evaluation.tasks} held-out tasks")
    table.add_column("mean", justify="right")
    for name, value in evaluation.measures.items():
        width = f" ± {interval(value, evaluation.tasks):.3f}" if name == "success" else ""
        table.add_row(name.replace("_", " "), f"{value:.3f}{width}")
    console.print(table)


def _directory(model: TrainableModel) -> Path:
    return runs_root() / model.project / model.name


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


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
