"""`gavel judge simulate`: the engine's scores with a judge of known biases, against one plain call per group.

No model is called: judge, groups and their true qualities are simulated from the seed.
"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gavel.base.text import counted
from gavel.cli.interrupts import run_interruptibly
from gavel.cli.lazy_commands import single_command
from gavel.judge.errors import JudgeError

if TYPE_CHECKING:
    from gavel.judge.audit.engine_quality import QualityReport
    from gavel.judge.offline.simulated import Bias, Faults


def simulate(
    groups: Annotated[int, typer.Option(min=2, help="Number of groups.")] = 300,
    members: Annotated[int, typer.Option(min=2, help="Members per group.")] = 8,
    orders: Annotated[str, typer.Option(help="Orders per group to compare.")] = "1,2,4,8",
    slope: Annotated[float, typer.Option(help="Bonus of the first position, malus of the last.")] = 0.6,
    u: Annotated[float, typer.Option(help="Bonus of both ends over the middle.")] = 0.3,
    noise: Annotated[float, typer.Option(help="Standard deviation of a call's errors.")] = 0.5,
    halo: Annotated[float, typer.Option(help="Bonus per point of score of the preceding member.")] = 0.3,
    step: Annotated[float, typer.Option(help="Scores are rounded to multiples of this.")] = 0.05,
    length: Annotated[float, typer.Option(help="Bonus of a text that is e times as long.")] = 0.0,
    compression: Annotated[float, typer.Option(help="Share of their distance from 1/2 that scores lose.")] = 0.0,
    idiosyncrasy: Annotated[float, typer.Option(help="Standard deviation of the errors that all calls share.")] = 0.0,
    self_preference: Annotated[float, typer.Option(help="Bonus of every second member, of the judge's family.")] = 0.0,
    crowding: Annotated[float, typer.Option(help="Power by which noise grows above 8 members shown.")] = 0.0,
    curve: Annotated[float, typer.Option(help="1 = a judge that only compares, 0 = absolute scores.")] = 0.0,
    severity: Annotated[float, typer.Option(help="Added to every score.")] = 0.0,
    faults: Annotated[float, typer.Option(help="Share of calls that fail, over all kinds of failure.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of groups and judge.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Prints the figures as JSON.")] = False,
) -> None:
    """Measure the engine on a simulated judge: agreement with the truth, and biases that remain. No model, no key.

    Biases are in standard deviations of the members' quality.
    """
    from gavel.judge.offline.simulated import Bias, Faults

    bias = Bias(
        slope=slope,
        u=u,
        length=length,
        self_preference=self_preference,
        idiosyncrasy=idiosyncrasy,
        halo=halo,
        noise=noise,
        crowding=crowding,
        curve=curve,
        severity=severity,
        compression=compression,
        step=step,
    )
    rows = run_interruptibly(_rows(groups, members, _counts(orders), bias, Faults.of_every_kind(faults), seed))
    if as_json:
        table = [{"way": way} | quality.figures() for way, quality in rows.items()]
        print(json.dumps({"bias": asdict(bias), "faults": faults, "seed": seed, "rows": table}))
    else:
        _print(Console(), rows, f"{counted(groups, 'group')} of {members}")


def _counts(orders: str) -> list[int]:
    try:
        counts = [int(count) for count in orders.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise JudgeError(
            f"the orders to try are whole numbers above 0, not {orders!r}.", "Write them as --orders 1,2,4,8."
        )
    return list(dict.fromkeys(counts))


async def _rows(
    groups: int, members: int, counts: list[int], bias: "Bias", faults: "Faults", seed: int
) -> dict[str, "QualityReport"]:
    from gavel.judge.audit.engine_quality import (
        OWN_FAMILY,
        arrival_order_scorer,
        engine_scorer,
        measure_quality,
        simulated_groups,
    )
    from gavel.judge.judge import Judge
    from gavel.judge.offline.simulated import Latent, SimulatedJudge

    truth: dict[str, Latent] = {}
    made = simulated_groups(groups, members, seed, truth)
    judge = SimulatedJudge(truth, bias, faults, family=OWN_FAMILY, seed=seed)
    ways = {"1 call by arrival": arrival_order_scorer(judge, 1)}
    ways |= {f"engine, {counted(n, 'order')}": engine_scorer(Judge(judge, orders=n, seed=seed)) for n in counts}
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        return {way: await measure_quality(ask, progress.track(made, description=way)) for way, ask in ways.items()}


def _print(console: Console, rows: dict[str, "QualityReport"], title: str) -> None:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("way of asking")
    for name in ("calls", "tau", "advantage", "slope", "length", "unscored"):
        table.add_column(name, justify="right", no_wrap=True)
    for way, quality in rows.items():
        table.add_row(
            way,
            f"{quality.calls_per_group:.1f}",
            f"{_number(quality.tau, '')} ±{_number(quality.error, '').removeprefix('0')}",
            _number(quality.advantage_correlation),
            _number(quality.position_slope),
            _number(quality.advantage_with_length),
            f"{quality.unscored_members:,}",
        )
    console.print(table)
    console.print(
        f"{title}. calls: for a group. tau: Kendall's, to the true qualities. advantage: correlation with the true "
        "advantages. slope: reward gained from the middle of the prompt to its end. length: correlation of advantage "
        "and length. unscored: members left without a number.",
        style="dim",
    )


def _number(figure: float | None, sign: str = "+") -> str:
    return "–" if figure is None else f"{figure:{sign}.3f}"


app = single_command(simulate)
