"""`gavel doctor`: what is installed, what is missing, and what to type next.

It imports no model library, except LiteLLM when a judge model is set, to find which key that judge needs, and sends
nothing, except with `--judge`. Keys are named, never shown.
"""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import gavel.judge.offline  # noqa: F401 - makes the stand-in known by name
from gavel.base.errors import GavelError
from gavel.base.extras import EXTRAS, install_line, installed_version, missing_parts
from gavel.cli.lazy_commands import single_command
from gavel.cli.options import JUDGE_FLAGS, judge_config, with_options
from gavel.cli.settings import STAND_IN, Settings
from gavel.cli.terminal import run_interruptibly
from gavel.judge.config import JudgeConfig
from gavel.llm.prices import prices_from_environment
from gavel.llm.providers import check_model

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY")
_JUDGE_FLAGS = [flag for flag in JUDGE_FLAGS if flag.name in ("--judge-param",)]
_NVIDIA_SECONDS = 10
_GAP = "    "


def doctor(
    values: Mapping[str, Any],
    judge: Annotated[
        bool, typer.Option("--judge", help="Ask the judge one cheap question, and report on it only.")
    ] = False,
    model: Annotated[str | None, typer.Argument(help="With --judge: the model. Default: GAVEL_JUDGE_MODEL.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; without --judge only.")] = False,
) -> None:
    """Show what is installed, which keys are set, and what to do next.

    `gavel doctor --judge openai/gpt-5-mini` shows whether key, model, credit and parameters of a judge are right.
    """
    if judge and as_json:
        raise GavelError("gavel doctor --judge has no --json.", "Leave one of them out.")
    if judge:
        raise typer.Exit(report_on_judge(Console(), judge_config({**values, "judge": model})))
    if model is not None:
        raise GavelError(
            f"gavel doctor takes no {model}.", f"To ask that model a question: gavel doctor --judge {model}"
        )
    raise typer.Exit(report(Console(), as_json=as_json))


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


@dataclass(frozen=True, slots=True)
class Installation:
    """What `gavel doctor` finds. Keys are true where they are set."""

    python: str
    torch: str | None
    gpus: list[str] | None
    """By the driver; None where it fails."""
    judge: str
    judge_is_set: bool
    keys: dict[str, bool]
    extras: dict[str, bool]
    """True where all parts of the extra are installed."""
    wandb: str
    runs: str
    problems: list[GavelError]
    next: str | None
    """What to type, where there is no problem."""

    def data(self) -> dict[str, Any]:
        """For programs."""
        problems = [{"message": each.message, "remedy": each.remedy} for each in self.problems]
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"problems": problems}


def installation(settings: Settings) -> Installation:
    """What is installed and set. Raises `GavelError` where the prices that are set cannot be read."""
    prices_from_environment()
    torch = installed_version("torch")
    extras = {extra: not missing_parts(extra) for extra in EXTRAS}
    gpus, gpu_problem = _gpus(torch)
    problems = [each for each in (_judge_problem(settings), _runs_problem(settings.runs), gpu_problem) if each]
    return Installation(
        python=platform.python_version(),
        torch=torch,
        gpus=gpus,
        judge=settings.judge,
        judge_is_set=settings.judge_model is not None,
        keys={key: bool(os.environ.get(key)) for key in KEYS},
        extras=extras,
        wandb=settings.wandb,
        runs=str(settings.runs),
        problems=problems,
        next=None if problems else _next_step(settings, can_train=extras["train"]),
    )


def report(console: Console, *, as_json: bool = False) -> int:
    """Prints the report; returns the exit status, 1 when something that was set cannot work."""
    try:
        settings = Settings.read()
        if as_json:
            found = installation(settings)
        else:
            with console.status("checking …"):
                found = installation(settings)
    except GavelError as error:
        if as_json:
            raise
        _print_problem(console, error)
        return 1
    if as_json:
        console.file.write(json.dumps(found.data(), indent=1) + "\n")
    else:
        _print(console, found)
    return 1 if found.problems else 0


def _print(console: Console, found: Installation) -> None:
    judge = found.judge if found.judge_is_set else f"GAVEL_JUDGE_MODEL not set → {STAND_IN} (rules, no key)"
    versions = [_mark(found.python, True), _mark(f"torch {found.torch or ''}".strip(), bool(found.torch))]
    table = Table.grid(padding=(0, 2))
    table.add_row("python", _in_line(versions))
    table.add_row("GPU", Text(_gpu_words(found.gpus)))
    table.add_row("judge", Text(judge))
    table.add_row("keys", _in_line(_mark(key, there) for key, there in found.keys.items()))
    table.add_row("extras", Text("\n").join(_extras(found.extras)))
    table.add_row("W&B", found.wandb)
    table.add_row("runs", Text(found.runs) if _runs_problem(Path(found.runs)) else _mark(found.runs, True))
    console.print(table)
    for problem in found.problems:
        _print_problem(console, problem)
    if found.next:
        console.print(Text(f"Next: {found.next}"))


def _print_problem(console: Console, problem: GavelError) -> None:
    console.print(Text.assemble(("✗ ", "red"), problem.message))
    console.print(Text(f"  {problem.remedy}"))


def _mark(name: str, there: bool) -> Text:
    return Text.assemble(name, " ", ("✓", "green") if there else ("–", "dim"))


def _in_line(parts: Iterable[Text]) -> Text:
    return Text(_GAP).join(parts)


def _judge_problem(settings: Settings) -> GavelError | None:
    try:
        check_model(settings.judge)
    except GavelError as error:
        return error
    return None


def _extras(installed: Mapping[str, bool]) -> list[Text]:
    """Which extras are installed, and the command that installs the first one that is not."""
    lines = [_in_line(_mark(extra, there) for extra, there in installed.items())]
    lines += [Text(f"more: {install_line(extra)}") for extra, there in installed.items() if not there][:1]
    return lines


def _runs_problem(directory: Path) -> GavelError | None:
    path = directory.absolute()
    there = next(place for place in (path, *path.parents) if place.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return None
    why = f"{there} is not a directory" if not there.is_dir() else f"{there} is not writable"
    return GavelError(f"the run directory {directory} cannot be written: {why}.", "Choose another with GAVEL_RUNS=…")


def _gpus(torch: str | None) -> tuple[list[str] | None, GavelError | None]:
    """The GPUs by the driver, without loading torch."""
    try:
        names = _nvidia_gpus()
    except (OSError, subprocess.SubprocessError) as error:
        return None, GavelError(f"nvidia-smi failed: {error}", "Repair the driver; until then training uses the CPU.")
    if names and torch and torch.endswith("+cpu"):
        return names, GavelError(
            f"there is a GPU, but torch {torch} is a build for the CPU.",
            "Install a CUDA build of the same version; pytorch.org/get-started says how.",
        )
    return names, None


def _gpu_words(gpus: list[str] | None) -> str:
    if gpus is None:
        return "not usable"
    return ", ".join(gpus) or "none (training uses the CPU: fine for tiny models)"


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
