"""Judges compared on stored trajectories, without training: with what is known of them, and with each other."""

import asyncio
import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from gavel.base.errors import GavelError, first_error
from gavel.base.text import counted
from gavel.cli.cassette_option import recorded, replay_account, with_cassette
from gavel.cli.dry_run import key_told_at_the_end
from gavel.cli.run_options import judge_config
from gavel.cli.settings import STAND_IN
from gavel.cli.terminal import plain
from gavel.judge.audit.agreement import agreement_of_pairs
from gavel.judge.audit.bootstrap import IntervalEstimate
from gavel.judge.estimate import estimate_groups
from gavel.judge.offline.stand_in import check_readable
from gavel.llm.providers import model_id
from gavel.reports.judge_trust import MIN_GROUPS
from gavel.reports.page import write_page
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.truth import truth_of

_REFERENCES = ("success", "reward/hand", "hand_reward", "independent_reward")


async def compare_judges(
    groups: Sequence[TrajectoryGroup],
    judges: Sequence[str],
    values: Mapping[str, Any],
    out: Path,
    rubric: str | None = None,
    *,
    dry_run: bool = False,
) -> None:
    """Scores all groups with every judge; prints and writes Kendall's tau within groups, unscored members and cost.

    `dry_run`: prints what each judge would take instead, and asks nothing.
    """
    if len(set(judges)) < len(judges):
        raise GavelError("a judge is named twice.", "Name each judge once.")
    if not groups:
        raise GavelError("there are no groups to judge.", "Name a run that has made a step, or a file of trajectories.")
    if model_id(STAND_IN) in map(model_id, judges):
        rubric_read = judge_config({**values, "judge": STAND_IN}).build(rubric).rubric
        check_readable(rubric_read, [truth_of(group) for group in groups])
    if dry_run:
        configs = {name: with_cassette(judge_config({**values, "judge": name}), out) for name in judges}
        built = {name: config.build(rubric, cassette=recorded(config)) for name, config in configs.items()}
        with key_told_at_the_end(built.values()):
            for name, judge in built.items():
                estimate = await estimate_groups(judge, groups)
                typer.echo(f"{name}: {counted(len(groups), 'group')}: {estimate.words}. Nothing was asked.")
        return
    console = Console()
    scored: dict[str, list[TrajectoryGroup]] = {}
    costs: dict[str, str] = {}
    for name in judges:
        judge = with_cassette(judge_config({**values, "judge": name}), out).build(rubric)
        await judge.probe(replayed=False)
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                made = [tasks.create_task(judge.score(group)) for group in groups]
        scored[name] = [task.result() for task in made]
        costs[name] = str(judge.budget.cost) if judge.asks_servers else "0.00 USD"
        if replayed := replay_account(judge):
            console.print(plain(replayed), soft_wrap=True)
        if judge.cassette:
            judge.cassette.close()
    references = [name for name in _REFERENCES if any(name in member.metrics for group in groups for member in group)]
    rows: list[dict[str, Any]] = []
    for name in judges:
        for reference in [*references, *(other for other in judges if other != name)]:
            tau = _tau(scored[name], groups, reference, scored.get(reference))
            rows.append({"judge": name, "reference": reference, "tau": tau.value, "low": tau.low, "high": tau.high,
                         "groups": tau.groups, "unscored": _unscored(scored[name]), "cost": costs[name]})  # fmt: skip
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["judge"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_page(out / "judges.csv", text.getvalue())
    write_page(out / "judges.json", json.dumps(rows, indent=1) + "\n")
    table = Table(box=None, pad_edge=False)
    for heading in ("judge", "against", "tau within groups", "groups", "unscored", "cost"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        no_width = row["low"] is None or row["low"] == row["high"] or row["groups"] < MIN_GROUPS
        interval = "" if no_width else f" ({row['low']:+.2f} to {row['high']:+.2f})"
        tau = "–" if row["tau"] is None else f"{row['tau']:+.2f}{interval}"
        cells = (row["judge"], row["reference"], tau, str(row["groups"]), str(row["unscored"]), row["cost"])
        table.add_row(*map(plain, cells))
    console.print(table)
    if not rows:
        console.print(plain("Nothing is known of these trajectories to compare one judge with: name a second judge."))
    console.print(plain(f"Figures: {out / 'judges.json'}"), soft_wrap=True)


def _tau(
    judged: Sequence[TrajectoryGroup],
    groups: Sequence[TrajectoryGroup],
    reference: str,
    other: Sequence[TrajectoryGroup] | None,
) -> IntervalEstimate:
    pairs: list[list[tuple[float, float]]] = []
    for at, group in enumerate(judged):
        found: list[tuple[float, float]] = []
        for number, member in enumerate(group):
            score = member.judgement.score if member.judgement else None
            if other is None:
                value = groups[at].trajectories[number].metrics.get(reference)
            else:
                against = other[at].trajectories[number].judgement
                value = against.score if against else None
            if score is not None and value is not None:
                found.append((score, float(value)))
        pairs.append(found)
    return agreement_of_pairs(pairs, reference).tau


def _unscored(groups: Sequence[TrajectoryGroup]) -> int:
    return sum(member.judgement is None or member.judgement.score is None for group in groups for member in group)
