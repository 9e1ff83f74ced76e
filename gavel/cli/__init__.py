"""The command line: `gavel demo | train | evaluate | score | judge | doctor`, and that of a scenario's own file."""

import asyncio
import gc
import os
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from gavel.cli import judge as judge_commands
from gavel.cli.settings import Settings, load_dotenv
from gavel.errors import GavelError

if TYPE_CHECKING:
    from gavel.scenarios.scenario import Scenario

_INTERRUPTED = 130
_GO_ON = "Finished steps are saved; the same command goes on from there."

Judge = Annotated[
    str | None,
    typer.Option(help="Judge model: any LiteLLM id, stand-in (rules, no key) or constant. Default: GAVEL_JUDGE_MODEL."),
]
BaseModel = Annotated[str, typer.Option("--model", help="Base model: a directory, a hub id, or embedded/returns-desk.")]
Name = Annotated[str | None, typer.Option(help="Name of the run. Default: made from scenario and model.")]
Engine = Annotated[
    str, typer.Option(help="Samples the rollouts: transformers (in this process), vllm, or the address of one.")
]
Processes = Annotated[
    int, typer.Option("--nproc", min=1, help="Processes that learn, on this machine: one for each GPU.")
]
Seed = Annotated[int, typer.Option(help="Chooses tasks and seeds every sampled turn.")]
ScenarioArgument = Annotated[str, typer.Argument(help="A shipped scenario, or file.py, or file.py:variable.")]

_EMBEDDED = "embedded/returns-desk"
"""As in `gavel.trainer.embedded`, which is not imported here: it would load torch."""

_stdout = Console()
_stderr = Console(stderr=True)

app = typer.Typer(
    name="gavel",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="An LLM judge as the reward, and a GRPO LoRA trainer for agents that use tools.",
)
app.add_typer(judge_commands.app)


@app.command()
def demo(
    seed: Seed = 0,
    judge: Judge = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 30,
    fresh: Annotated[bool, typer.Option(help="Start over instead of going on with an earlier run.")] = False,
) -> None:
    """Train a tiny agent on this machine: no GPU, no key, a few minutes."""
    started = time.monotonic()
    _need_training("gavel demo")
    from gavel.cli.demo import DemoSettings, run_demo

    settings = DemoSettings(seed=seed, judge=judge or Settings.read().judge, steps=steps, fresh=fresh)
    _run(run_demo(settings, _stdout, started), _GO_ON)


@app.command()
def train(
    scenario: ScenarioArgument,
    model: BaseModel = _EMBEDDED,
    judge: Judge = None,
    name: Name = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps in all; an earlier run goes on.")] = 50,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks (groups) in a step.")] = 16,
    group_size: Annotated[int, typer.Option(min=2, help="Rollouts of a task that the judge compares.")] = 8,
    orders: Annotated[int, typer.Option(min=1, help="Orders in which the judge sees a group.")] = 2,
    learning_rate: Annotated[
        float | None, typer.Option(min=1e-9, help="Peak. Default: 1e-5; 2e-3 for the embedded model.")
    ] = None,
    max_context: Annotated[int, typer.Option(min=16, help="Tokens of a conversation, at most.")] = 4096,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of one turn of the agent. Default: 1024.")] = None,
    evaluation_tasks: Annotated[int, typer.Option(min=1, help="Held-out tasks of an evaluation.")] = 128,
    advantage: Annotated[
        Literal["mean", "std", "rloo", "rank", "shrunk"],
        typer.Option(help="What of a group's scores the learner sees."),
    ] = "mean",
    minimal_spread: Annotated[
        float, typer.Option(min=0, help="A group whose scores differ by no more than this is not trained on.")
    ] = 1e-6,
    max_staleness: Annotated[
        int,
        typer.Option(min=0, help="Steps by which rollouts may be behind, to go on during judging and training."),
    ] = 0,
    stall_seconds: Annotated[
        float, typer.Option(min=1, help="How long nothing may happen before the run is given up.")
    ] = 1800.0,
    engine: Engine = "transformers",
    nproc: Processes = 1,
    shard_base: Annotated[
        bool,
        typer.Option("--shard-base", help="Spread a base that does not fit one GPU over the processes; needs vllm."),
    ] = False,
    seed: Seed = 0,
) -> None:
    """Train an agent on a scenario, with a judge's scores as the reward."""
    _need_training("gavel train")
    from gavel.judge.judge import Judge as JudgeEngine

    found = _found(scenario)
    judging = JudgeEngine(judge or Settings.read().judge, rubric=found.rubric, orders=orders, seed=seed)
    judging.check()  # before torch is loaded: a mistake is told at once
    if nproc > 1:
        from gavel.trainer.distributed import launch, launched

        if not launched():
            raise typer.Exit(launch(nproc))
    from gavel.cli.train import default_learning_rate, engine_choice, run_training, trainable
    from gavel.trainer.backends.local import LocalBackend
    from gavel.trainer.config import LoopConfig, TrainConfig

    loop = LoopConfig(
        steps=steps,
        tasks_per_step=tasks,
        group_size=group_size,
        max_tokens=max_tokens,
        max_staleness=max_staleness,
        stall_seconds=stall_seconds,
        seed=seed,
        evaluation_tasks=evaluation_tasks,
        final_tasks=evaluation_tasks,
    )
    rate = default_learning_rate(model) if learning_rate is None else learning_rate
    config = TrainConfig(
        advantage=advantage,
        minimal_spread=minimal_spread,
        learning_rate=rate,
        warmup_steps=min(3, steps - 1),
        total_steps=steps,
    )
    backend = LocalBackend(
        engine=engine_choice(engine), max_context=max_context, versions=max_staleness + 1, shard_base=shard_base
    )
    _run(run_training(trainable(found, model, name), found, judging, loop, config, _stdout, backend), _GO_ON)


@app.command()
def evaluate(
    scenario: ScenarioArgument,
    model: BaseModel = _EMBEDDED,
    name: Name = None,
    tasks: Annotated[int, typer.Option(min=1, help="Held-out tasks.")] = 256,
    max_context: Annotated[int, typer.Option(min=16, help="Tokens of a conversation, at most.")] = 4096,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of one turn of the agent. Default: 1024.")] = None,
    engine: Engine = "transformers",
    seed: Seed = 0,
) -> None:
    """Measure a run's newest policy (or its base, before training) on held-out tasks."""
    _need_training("gavel evaluate")
    found = _found(scenario)
    from gavel.cli.train import engine_choice, run_evaluation, trainable
    from gavel.trainer.config import LoopConfig

    loop = LoopConfig(max_tokens=max_tokens, seed=seed, final_tasks=tasks)
    trained, chosen = trainable(found, model, name), engine_choice(engine)
    _run(run_evaluation(trained, found, loop, _stdout, max_context, chosen, must_exist=name is not None))


@app.command()
def score(
    file: Annotated[
        Path, typer.Argument(help="JSONL of message lists, trajectories or groups; or a .jsonl.zst store.")
    ],
    judge: Judge = None,
    rubric: Annotated[str | None, typer.Option(help="What good work is; @FILE reads it from a file.")] = None,
    orders: Annotated[int, typer.Option(min=1, help="Orders in which the judge sees a group.")] = 2,
    by: Annotated[str | None, typer.Option(help="Field (dotted path) whose value groups the rows.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the judged groups, as JSONL.")] = None,
    mode: Annotated[
        Literal["groupwise", "pairwise"], typer.Option(help="Whether the judge sees a whole group, or two at a time.")
    ] = "groupwise",
) -> None:
    """Score trajectories from a file with a judge."""
    from gavel.cli.score import score_command

    score_command(file, judge, rubric, orders, by, out, mode)


@app.command()
def doctor() -> None:
    """Show what is installed, which keys are set, and what to do next."""
    from gavel.cli.doctor import doctor as examine

    raise typer.Exit(examine(_stdout))


def main() -> None:
    """The `gavel` command."""
    _main(sys.argv[1:])


def run(scenario: "Scenario") -> None:
    """The command line of one scenario's own file: `python file.py train …`, `python file.py evaluate …`."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ("train", "evaluate"):
        arguments.insert(1, scenario.name)
    _own[scenario.name] = scenario
    _main(arguments)


_COLLECTIONS = 20_000, 20, 20
"""How rarely to look for cyclic garbage. By Python's own thresholds a run's million objects are looked through so often
that a demo takes an eighth longer; these cost it some 60 MB."""

_own: "dict[str, Scenario]" = {}
"""The scenario of the file that called `run`."""


def _found(reference: str) -> "Scenario":
    from gavel.scenarios.scenario import find_scenario

    return _own.get(reference) or find_scenario(reference)


def _main(arguments: list[str]) -> None:
    """Runs a command; a user's mistake is one clear sentence with its remedy, and exit status 1."""
    gc.set_threshold(*_COLLECTIONS)
    try:
        load_dotenv()
        app(arguments)
    except GavelError as error:
        _stderr.print(f"[bold red]error:[/] {_escaped(error.message)}", highlight=False, soft_wrap=True)
        if error.remedy:
            _stderr.print(f"       {_escaped(error.remedy)}", highlight=False, soft_wrap=True)
        sys.exit(1)


def _need_training(command: str) -> None:
    from gavel.extras import MissingExtraError, missing_parts

    missing = missing_parts("train")
    if missing:
        raise MissingExtraError(command, missing[0], "train")


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _run(work: Coroutine[Any, Any, object], resume: str = "") -> None:
    """Runs `work` to its end, with the chatter of the model libraries kept out of the terminal.

    Ctrl-C lets a step that is being learned finish, says `resume`, and exits with status 130.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        _stderr.print(f"Stopped. {resume}" if resume else "Stopped.")
        raise typer.Exit(_INTERRUPTED) from None
