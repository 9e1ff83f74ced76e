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
from gavel.base.errors import GavelError
from gavel.base.extras import EXTRAS, install_line, installed_version, missing_parts
from gavel.cli.interrupts import run_interruptibly
from gavel.cli.options import JUDGE_PARAMS, STAND_IN, default_judge, judge_config, settings_command
from gavel.judge.config import JudgeConfig
from gavel.llm.budget import prices_from_environment
from gavel.llm.providers import check_model
from gavel.trainer.runs.run_directory import runs_root
from gavel.trainer.runs.trackers import wandb_mode

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY")
_NVIDIA_SECONDS = 10
_GAP = "    "


def doctor(
    values: Mapping[str, Any],
    judge: Annotated[bool, typer.Option("--judge", help="Ask the judge one cheap question, and report on it.")] = False,
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
        chatty = "" if probe.is_alone else "adds words to its JSON: such replies are asked for again, twice at most"
        facts = [f"answered in {probe.seconds:.1f} s", f"replies as {probe.reply_format}", cost, served, chatty]
        console.print(_mark(probe.model, True), Text(" · ".join(filter(None, facts))), soft_wrap=True)
    asked = {probe.model for probe in probes}
    for name in dict.fromkeys(judge.names):
        if name not in asked:
            console.print(_mark(name, True), Text("on this machine: nothing to ask"), soft_wrap=True)
    return 1 if any(probe.problem for probe in probes) else 0


def report(console: Console) -> int:
    """Prints what is installed and set; returns the exit status, 1 when something that was set cannot work."""
    runs, torch = runs_root(), installed_version("torch")
    is_set = bool(os.environ.get("GAVEL_JUDGE_MODEL", "").strip())
    problems: list[GavelError] = []
    for check in (prices_from_environment, lambda: check_model(default_judge()), lambda: _check_runs(runs)):
        try:
            check()
        except GavelError as error:
            problems.append(error)
    gpus = "none (training uses the CPU: fine for tiny models)"
    try:  # as the driver tells, without loading torch
        found = ["NVIDIA"] if Path("/proc/driver/nvidia/version").exists() else []
        if tool := shutil.which("nvidia-smi"):
            query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
            told = subprocess.run(query, capture_output=True, text=True, timeout=_NVIDIA_SECONDS, check=True).stdout
            found = [line.strip() for line in told.splitlines() if line.strip()]
        gpus = ", ".join(found) or gpus
        if found and torch and torch.endswith("+cpu"):
            remedy = "Install a CUDA build of the same version; pytorch.org/get-started says how."
            problems.append(GavelError(f"there is a GPU, but torch {torch} is a build for the CPU.", remedy))
    except (OSError, subprocess.SubprocessError) as error:
        gpus = "not usable"
        remedy = "Repair the driver; until then training uses the CPU."
        problems.append(GavelError(f"nvidia-smi failed: {error}", remedy))
    extras = {extra: not missing_parts(extra) for extra in EXTRAS}
    missing = [extra for extra, there in extras.items() if not there]
    more = f"\nmore: {install_line(missing[0])}" if missing else ""
    gap, table = Text(_GAP), Table.grid(padding=(0, 2))
    versions = [_mark(platform.python_version(), True), _mark(f"torch {torch or ''}".strip(), bool(torch))]
    table.add_row("python", gap.join(versions))
    table.add_row("GPU", Text(gpus))
    table.add_row(
        "judge", Text(default_judge() if is_set else f"GAVEL_JUDGE_MODEL not set → {STAND_IN} (rules, no key)")
    )
    table.add_row("keys", gap.join(_mark(key, bool(os.environ.get(key))) for key in KEYS))
    table.add_row("extras", gap.join(_mark(extra, there) for extra, there in extras.items()) + Text(more))
    table.add_row("W&B", wandb_mode())
    table.add_row("runs", Text(str(runs)))
    console.print(table)
    for problem in problems:
        _print_problem(console, problem)
    if problems:
        return 1
    if not extras["train"]:
        following = f"{install_line('train')} to train, or `gavel score FILE` to judge what you have."
    elif not is_set:
        following = "`gavel demo`, or set GAVEL_JUDGE_MODEL to judge with a real model."
    else:
        following = "`gavel train my_scenario.py --model MODEL`, or `gavel demo` first."
    console.print(Text(f"Next: {following}"))
    return 0


def _print_problem(console: Console, problem: GavelError) -> None:
    console.print(Text.assemble(("✗ ", "red"), problem.message))
    console.print(Text(f"  {problem.remedy}"))


def _mark(name: str, there: bool) -> Text:
    return Text.assemble(name, " ", ("✓", "green") if there else ("–", "dim"))


def _check_runs(directory: Path) -> None:
    path = directory.absolute()
    there = next(place for place in (path, *path.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = f"{there} is not a directory" if not there.is_dir() else f"{there} is not writable"
        raise GavelError(f"the run directory {directory} cannot be written: {why}.", "Choose another with GAVEL_RUNS=…")


app = settings_command(doctor, JudgeConfig, JUDGE_PARAMS)
