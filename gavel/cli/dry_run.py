"""`--dry-run` of a training: what the judge may cost, and whether the run would begin.

The lengths that are assumed are those of the episodes that `gavel check` played, where it was run.
"""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gavel.base.extras import missing_parts
from gavel.base.text import counted
from gavel.cli.interrupts import run_interruptibly
from gavel.cli.terminal import print_warning
from gavel.judge.judge import Judge
from gavel.scenarios.mixture import Mixture
from gavel.trainer.config import LoopConfig
from gavel.trainer.run_config import RunConfig

if TYPE_CHECKING:
    from gavel.scenarios.scenario import Scenario

_ASSUMED_CONTEXT = 4096
"""Tokens that are assumed where nobody knows better."""


def print_run_estimate(judge: Judge | None, loop: LoopConfig, member_tokens: dict[str, int]) -> None:
    """Prints the judge's calls, tokens and dollars; nothing is asked. `member_tokens`: lengths to assume, by label."""
    if judge is None:
        typer.echo("The reward gives the judge no weight: it is not asked.")
        return
    from gavel.judge.estimate import estimate_run

    groups = loop.steps * loop.tasks_per_step
    size = f"{counted(loop.steps, 'step')} of {counted(loop.tasks_per_step, 'group')} of {loop.group_size}"
    typer.echo(f"{size}. Nothing was asked.")
    for label, tokens in member_tokens.items():
        estimate = run_interruptibly(estimate_run(judge, groups, loop.group_size, tokens))
        typer.echo(f"{label} ({counted(tokens, 'token')} each): {estimate.words}")
    if loop.refill:
        further = loop.steps * math.floor(loop.refill * loop.tasks_per_step)
        typer.echo(f"At most {counted(further, 'further group')} in place of those without a signal come on top.")
    typer.echo("Repeated calls come on top; groups of identical rollouts, and replies on a cassette, cost nothing.")


def check_base(config: RunConfig) -> None:
    """Raises `BaseModelError` where the run would find no base model. Asks the hub for a model that is not here."""
    if config.backend.url is not None:
        return
    if missing_parts("train"):
        typer.echo("The base model was not looked for: that needs the extra train.", err=True)
        return
    from gavel.trainer.policy.policy import check_exists

    check_exists(config.model.base_model)


def keep_lengths(scenario: "Scenario | Mixture", tokens: int, players: str) -> None:
    """Keeps how long the longest episode was that `gavel check` played, for later dry runs. `players`: by whom."""
    file = _kept(scenario)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"tokens": tokens, "players": players}) + "\n", encoding="utf-8")
    except OSError as error:
        print_warning(f"the lengths were not kept for --dry-run: {file} cannot be written: {error.strerror or error}")


def seen_lengths(scenario: "Scenario | Mixture", max_context: int | None) -> dict[str, int]:
    """Lengths of a rollout to assume, by label; of several scenarios, those of the longest."""
    try:
        seen = [json.loads(_kept(each).read_text(encoding="utf-8")) for each in Mixture.of(scenario)]
        longest = max(seen, key=lambda each: each["tokens"])
        return {f"As long as the episodes of `gavel check`, played by {longest['players']}": int(longest["tokens"])}
    except (OSError, ValueError, KeyError, TypeError):  # it was not run here, or another program wrote the file
        longest = max_context or _ASSUMED_CONTEXT
        label = "At most, every rollout at --max-context" if max_context else "With long rollouts; longer ones may fit"
        return {label: longest, "At an eighth of that (`gavel check` tells how long they are)": max(longest // 8, 1)}


def _kept(scenario: "Scenario | Mixture") -> Path:
    from gavel.trainer.runs.run_directory import run_path, runs_root

    return run_path(runs_root(), scenario.name, "x").parent / "check.json"
