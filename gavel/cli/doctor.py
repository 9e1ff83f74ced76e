"""`gavel doctor`: what is installed, what is missing, and what to type next.

It imports no model library, except LiteLLM when a judge model is set, to find which key that judge needs, and sends
nothing, except with `--judge`. Keys are named, never shown.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import gavel.judge.offline  # noqa: F401 - makes the stand-in known by name
from gavel.cli.interrupts import run_interruptibly
from gavel.cli.lazy_commands import single_command
from gavel.cli.model_options import with_options
from gavel.cli.run_options import JUDGE_FLAGS, judge_config
from gavel.cli.settings import STAND_IN, Settings
from gavel.extras import EXTRAS, install_line, installed_version, missing_parts
from gavel.judge.config import JudgeConfig
from gavel.llm.errors import GavelError
from gavel.llm.prices import prices_from_environment
from gavel.llm.providers import check_model

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY")
_JUDGE_FLAGS = [flag for flag in JUDGE_FLAGS if flag.name in ("--judge-param",)]
_NVIDIA_SECONDS = 10
_GAP = "    "

Problem = GavelError | None


def doctor(
    values: Mapping[str, Any],
    judge: Annotated[
        bool, typer.Option("--judge", help="Ask the judge one cheap question, and report on it only.")
    ] = False,
    model: Annotated[str | None, typer.Argument(help="With --judge: the model. Default: GAVEL_JUDGE_MODEL.")] = None,
) -> None:
    """Show what is installed, which keys are set, and what to do next.

    `gavel doctor --judge openai/gpt-5-mini` shows whether key, model, credit and parameters of a judge are right.
    """
    if judge:
        raise typer.Exit(report_on_judge(Console(), judge_config({**values, "judge": model})))
    if model is not None:
        raise GavelError(
            f"gavel doctor takes no {model}.", f"To ask that model a question: gavel doctor --judge {model}"
        )
    raise typer.Exit(report(Console()))


def report_on_judge(console: Console, config: JudgeConfig) -> int:
    """Asks the judge's models one question each; returns the exit status, 1 when one cannot be asked."""
    try:
        judge = config.build()
        with console.status("asking …"):
            probes = run_interruptibly(judge.probe())
    except GavelError as error:
        _print_problem(console, error)
        return 1
    for probe in probes:
        if probe.problem:
            _print_problem(console, GavelError(probe.problem, "It is a fallback: the models before it are asked."))
            continue
        cost = "cost unknown (set GAVEL_PRICES)" if probe.cost_usd is None else f"{probe.cost_usd:.2g} USD"
        served = f"served as {probe.served_by}" if probe.served_by else ""
        facts = [f"answered in {probe.seconds:.1f} s", f"replies as {probe.reply_format}", cost, served]
        console.print(_mark(probe.model, True), Text(" · ".join(filter(None, facts))), soft_wrap=True)
    asked = {probe.model for probe in probes}
    for name in dict.fromkeys(judge.names):
        if name not in asked:
            console.print(_mark(name, True), Text("on this machine: nothing to ask"), soft_wrap=True)
    return 1 if any(probe.problem for probe in probes) else 0


def report(console: Console) -> int:
    """Prints the report; returns the exit status, 1 when something that was set cannot work."""
    try:
        settings = Settings.read()
        prices_from_environment()
    except GavelError as error:
        _print_problem(console, error)
        return 1
    untrained = missing_parts("train")
    with console.status("checking …"):
        judge, judge_problem = _judge(settings)
        runs, runs_problem = _runs(settings.runs)
        gpu, gpu_problem = _gpu(installed_version("torch"))
    table = Table.grid(padding=(0, 2))
    table.add_row("python", _versions())
    table.add_row("GPU", gpu)
    table.add_row("judge", judge)
    table.add_row("keys", Text(_GAP).join(_mark(key, bool(os.environ.get(key))) for key in KEYS))
    table.add_row("extras", Text("\n").join(_extras()))
    table.add_row("W&B", settings.wandb)
    table.add_row("runs", runs)
    console.print(table)
    problems = [problem for problem in (judge_problem, runs_problem, gpu_problem) if problem]
    for problem in problems:
        _print_problem(console, problem)
    if not problems:
        console.print(Text(f"Next: {_next_step(settings, can_train=not untrained)}"))
    return 1 if problems else 0


def _print_problem(console: Console, problem: GavelError) -> None:
    console.print(Text.assemble(("✗ ", "red"), problem.message))
    console.print(Text(f"  {problem.remedy}"))


def _mark(name: str, there: bool) -> Text:
    return Text.assemble(name, " ", ("✓", "green") if there else ("–", "dim"))


def _versions() -> Text:
    torch = installed_version("torch")
    return Text(_GAP).join([_mark(platform.python_version(), True), _mark(f"torch {torch or ''}".strip(), bool(torch))])


def _judge(settings: Settings) -> tuple[Text, Problem]:
    line = Text(settings.judge_model or f"GAVEL_JUDGE_MODEL not set → {STAND_IN} (rules, no key)")
    try:
        check_model(settings.judge)
    except GavelError as error:
        return line, error
    return line, None


def _extras() -> list[Text]:
    """Which extras are installed, and the command that installs the first one that is not."""
    missing = {extra: bool(missing_parts(extra)) for extra in EXTRAS}
    lines = [Text(_GAP).join(_mark(extra, not lacking) for extra, lacking in missing.items())]
    lines += [Text(f"more: {install_line(extra)}") for extra, lacking in missing.items() if lacking][:1]
    return lines


def _runs(directory: Path) -> tuple[Text, Problem]:
    path = directory.absolute()
    there = next(place for place in (path, *path.parents) if place.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return _mark(str(directory), True), None
    why = f"{there} is not a directory" if not there.is_dir() else f"{there} is not writable"
    return Text(str(directory)), GavelError(
        f"the run directory {directory} cannot be written: {why}.", "Choose another with GAVEL_RUNS=…"
    )


def _gpu(torch: str | None) -> tuple[Text, Problem]:
    """The GPUs by the driver, without loading torch."""
    try:
        names = _nvidia_gpus()
    except (OSError, subprocess.SubprocessError) as error:
        return Text("not usable"), GavelError(
            f"nvidia-smi failed: {error}", "Repair the driver; until then training uses the CPU."
        )
    if not names:
        return Text("none (training uses the CPU: fine for tiny models)"), None
    line = Text(", ".join(names))
    if torch and torch.endswith("+cpu"):
        return line, GavelError(
            f"there is a GPU, but torch {torch} is a build for the CPU.",
            "Install a CUDA build of the same version; pytorch.org/get-started says how.",
        )
    return line, None


def _nvidia_gpus() -> list[str]:
    if tool := shutil.which("nvidia-smi"):
        query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
        found = subprocess.run(query, capture_output=True, text=True, timeout=_NVIDIA_SECONDS, check=True)
        return [line.strip() for line in found.stdout.splitlines() if line.strip()]
    return ["NVIDIA"] if Path("/proc/driver/nvidia/version").exists() else []


def _next_step(settings: Settings, *, can_train: bool) -> str:
    if not can_train:
        return f"{install_line('train')} to train, or `gavel score FILE` to judge what you have."
    if settings.judge_model is None:
        return "`gavel demo`, or set GAVEL_JUDGE_MODEL to judge with a real model."
    return "`gavel train my_scenario.py --model MODEL`, or `gavel demo` first."


app = single_command(with_options(doctor, JudgeConfig, _JUDGE_FLAGS))
