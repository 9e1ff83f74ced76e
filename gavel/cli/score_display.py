"""The table of scores that `gavel score` prints, and the line of totals below it."""

from collections import Counter
from collections.abc import Container, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gavel.cli.terminal import plain
from gavel.llm.budget import cost_in_words
from gavel.llm.counted import counted
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement
from gavel.scenarios.trajectory import Trajectory

_WARNINGS = 3
"""The judge's own, of which the most common are printed."""


def print_scores(
    console: Console,
    groups: Sequence[TrajectoryGroup],
    by: str | None = None,
    *,
    earlier: Container[int] = (),
    cost: str | None = None,
) -> None:
    """Prints a table of all members, and the totals of calls, tokens and cost.

    `earlier`: ids of those of `groups` that an earlier run has judged and paid for. `cost`: what this run has cost, in
    words; None = as the groups' judgements say.
    """
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
    warned = Counter(warning for group in groups if group.judgement for warning in group.judgement.warnings)
    for warning, count in warned.most_common(_WARNINGS):
        console.print(plain(f"warning: {warning} (in {counted(count, 'group')})", "yellow"), soft_wrap=True)
    console.print(plain(_account(groups, earlier, cost)), soft_wrap=True)


def _score_cells(trajectory: Trajectory) -> tuple[Text, Text]:
    judgement = trajectory.judgement
    if judgement is None or judgement.score is None:
        return Text("–"), plain((judgement and judgement.reason) or "not judged")
    flags = "".join(f"[{flag}] " for flag in judgement.flags)
    error = "" if judgement.standard_error is None else f" ± {judgement.standard_error:.2f}"
    return Text(f"{judgement.score:.2f}{error}"), plain(flags + judgement.explanation)


def _account(groups: Sequence[TrajectoryGroup], earlier: Container[int], cost: str | None) -> str:
    """`2 groups · 7 of 8 trajectories scored · judge openai/gpt-5-mini · 4 calls · 5,120 + 610 tokens · 0.02 USD`"""
    wholes = [group.judgement for group in groups if group.judgement]
    now = [group.judgement for group in groups if group.judgement and id(group) not in earlier]
    before = [group.judgement for group in groups if group.judgement and id(group) in earlier]
    members = [trajectory for group in groups for trajectory in group]
    scored = sum(trajectory.reward is not None for trajectory in members)
    models = dict.fromkeys(model for whole in wholes for model in whole.models)
    opposed = sum(whole.order_agreement is not None and whole.order_agreement <= 0 for whole in wholes)
    parts = [
        counted(len(groups), "group"),
        f"{scored:,} of {counted(len(members), 'trajectory')} scored",
        *([f"orders contradict each other in {counted(opposed, 'group')}"] if opposed else []),
        f"judge {', '.join(models)}",
        _calls(now),
        f"{sum(w.prompt_tokens for w in now):,} + {sum(w.completion_tokens for w in now):,} tokens",
        _priced(_cost(now) if cost is None else cost),
    ]
    if before:
        parts.append(f"before this run: {counted(len(before), 'group')}, {_calls(before)}, {_priced(_cost(before))}")
    return " · ".join(parts)


def _calls(wholes: Sequence[GroupJudgement]) -> str:
    return counted(sum(whole.calls for whole in wholes), "call")


def _cost(wholes: Sequence[GroupJudgement]) -> str:
    asked = [whole for whole in wholes if whole.calls]
    unknown = sum(whole.calls for whole in asked if whole.cost_usd is None)
    return cost_in_words(sum(whole.cost_usd or 0.0 for whole in asked), sum(whole.calls for whole in asked), unknown)


def _priced(cost: str) -> str:
    return f"{cost} (set GAVEL_PRICES)" if cost == "cost unknown" else cost
