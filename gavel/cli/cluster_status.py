"""`gavel cluster status`."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gavel.cli.cluster_options import need_service
from gavel.cli.interrupts import run_interruptibly
from gavel.cli.lazy_commands import single_command
from gavel.cli.terminal import plain

if TYPE_CHECKING:
    from gavel.trainer.backends.skypilot.cluster_record import ClusterRecord
    from gavel.trainer.backends.skypilot.host import ClusterStatus


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list; an unknown price is null.")] = False,
) -> None:
    """Show what is on, and what it costs: every cluster that SkyPilot knows, whoever started it."""
    need_service()
    from gavel.trainer.backends.skypilot.cluster_record import ClusterRecord
    from gavel.trainer.backends.skypilot.host import ClusterStatus
    from gavel.trainer.backends.skypilot.sky_host import SkyHost
    from gavel.trainer.backends.skypilot.this_machine import ThisMachine

    records = {record.cluster: record for record in ClusterRecord.all()}
    here = [record for record in records.values() if record.process is not None]

    async def ask() -> list[ClusterStatus]:
        found = await ThisMachine().statuses()
        if len(here) < len(records) or not records:
            found += await SkyHost().statuses()
        return found

    found = run_interruptibly(ask())
    rows = [_row(each, records.get(each.cluster)) for each in found]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    console = Console()
    if not found:
        console.print(plain("No cluster is on, and none is stopped."))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("cluster", "state", "machines", "if idle", "USD/h", "USD so far", ""):
        table.add_column(heading)
    for row in rows:
        known = "" if row["started_here"] else "not started from here"
        prices = _usd(row["usd_per_hour"]), _usd(row["usd_so_far"])
        table.add_row(*map(plain, (row["cluster"], row["state"], row["machines"], row["if_idle"], *prices, known)))
    console.print(table)
    on = [row["usd_per_hour"] for row in rows if row["state"] != "stopped"]
    total, unknown = sum(price or 0.0 for price in on), None in on
    more = ", and clusters of unknown price" if unknown else ""
    console.print(plain(f"On now: {total:.2f} USD an hour{more}. gavel cluster down NAME ends one."))


def _row(found: "ClusterStatus", record: "ClusterRecord | None") -> dict[str, Any]:
    """A cluster as it is listed; its price by the record where SkyPilot does not know it."""
    from gavel.trainer.backends.skypilot.host import idle_words

    price = found.usd_per_hour
    if price is None and record is not None:
        price = record.usd_per_hour
    return {
        "cluster": found.cluster,
        "state": found.state,
        "machines": found.resources,
        "if_idle": idle_words(record.idle_minutes, record.ends_machines) if record else found.autostop,
        "usd_per_hour": price,
        "usd_so_far": found.usd_so_far,
        "started_here": record is not None,
    }


def _usd(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"


app = single_command(status)
