"""What the judge of a training run may cost, told before the run: `--dry-run`."""

import math

import typer

from gavel.cli.interrupts import run_interruptibly
from gavel.judge.judge import Judge
from gavel.llm.counted import counted
from gavel.trainer.config import LoopConfig


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
        typer.echo(f"{label} ({tokens:,} tokens each): {estimate.words}")
    if loop.refill:
        further = loop.steps * math.floor(loop.refill * loop.tasks_per_step)
        typer.echo(f"At most {counted(further, 'further group')} in place of those without a signal come on top.")
    typer.echo("Repeated calls come on top; groups of identical rollouts, and replies on a cassette, cost nothing.")
