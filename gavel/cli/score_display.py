"""The table of scores that `gavel score` prints, and the line of totals below it."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gavel.cli.terminal import counted, plain
from gavel.llm.budget import cost_in_words
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory


def print_scores(console: Console, groups: Sequence[TrajectoryGroup], by: str | None = None) -> None:
    """Prints a table of all members, and the totals of calls, tokens and cost."""
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("group", overflow="fold")
    table.add_column("member", justify="right")
    table.add_column("score", no_wrap=True)
    table.add_column("explanation", overflow="fold")
    for number, group in enumerate(groups, 1):
        label = str(group.metadata.get(by, number)) if by else str(number)
        if not group.trajectories and group.judgement:
            table.add_row(plain(label), "", "–", plain(group.judgement.reason or ""))
        for member, trajectory in enumerate(group, 1):
            last = member == len(group)
            table.add_row(plain(label if member == 1 else ""), str(member), *_score_cells(trajectory), end_section=last)
    console.print(table)
    console.print(plain(_account(groups)))


def _score_cells(trajectory: Trajectory) -> tuple[Text, Text]:
    judgement = trajectory.judgement
    if judgement is None or judgement.score is None:
        return Text("–"), plain((judgement and judgement.reason) or "not judged")
    flags = "".join(f"[{flag}] " for flag in judgement.flags)
    error = "" if judgement.standard_error is None else f" ± {judgement.standard_error:.2f}"
    return Text(f"{judgement.score:.2f}{error}"), plain(flags + judgement.explanation)


def _account(groups: Sequence[TrajectoryGroup]) -> str:
    """`2 groups · 7 of 8 trajectories scored · judge openai/gpt-5-mini · 4 calls · 5,120 + 610 tokens · 0.02 USD`"""
    wholes = [group.judgement for group in groups if group.judgement]
    members = [trajectory for group in groups for trajectory in group]
    scored = sum(trajectory.reward is not None for trajectory in members)
    models = dict.fromkeys(model for whole in wholes for model in whole.models)
    asked = [whole for whole in wholes if whole.calls]
    unknown = sum(whole.calls for whole in asked if whole.cost_usd is None)
    cost = cost_in_words(sum(whole.cost_usd or 0.0 for whole in asked), sum(whole.calls for whole in asked), unknown)
    opposed = sum(whole.order_agreement is not None and whole.order_agreement <= 0 for whole in wholes)
    return " · ".join(
        [
            counted(len(groups), "group"),
            f"{scored:,} of {len(members):,} trajector{'y' if len(members) == 1 else 'ies'} scored",
            *([f"orders contradict each other in {counted(opposed, 'group')}"] if opposed else []),
            f"judge {', '.join(models)}",
            counted(sum(whole.calls for whole in wholes), "call"),
            f"{sum(w.prompt_tokens for w in wholes):,} + {sum(w.completion_tokens for w in wholes):,} tokens",
            f"{cost} (set GAVEL_PRICES)" if cost == "cost unknown" else cost,
        ]
    )
