"""`gavel cluster status`."""

from rich.console import Console
from rich.table import Table

from gavel.cli.cluster_options import need_service
from gavel.cli.interrupts import run_interruptibly
from gavel.cli.lazy_commands import single_command
from gavel.cli.terminal import plain


def status() -> None:
    """Show what is on, and what it costs: every cluster that SkyPilot knows, whoever started it."""
    need_service()
    from gavel.trainer.backends.skypilot.cluster_record import ClusterRecord
    from gavel.trainer.backends.skypilot.host import ClusterStatus, idle_words
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
    console = Console()
    if not found:
        return console.print(plain("No cluster is on, and none is stopped."))
    table = Table(box=None, pad_edge=False)
    for heading in ("cluster", "state", "machines", "if idle", "USD/h", "USD so far", ""):
        table.add_column(heading)
    total, unknown = 0.0, False
    for each in found:
        record = records.get(each.cluster)
        price = each.usd_per_hour if each.usd_per_hour is not None else record.usd_per_hour if record else None
        on = each.state != "stopped"
        total, unknown = total + (price or 0.0) * on, unknown or (on and price is None)
        known = "" if record else "not started from here"
        ends = idle_words(record.idle_minutes, record.ends_machines) if record else each.autostop
        cells = (each.cluster, each.state, each.resources, ends, _usd(price), _usd(each.usd_so_far), known)
        table.add_row(*map(plain, cells))
    console.print(table)
    more = ", and clusters of unknown price" if unknown else ""
    console.print(plain(f"On now: {total:.2f} USD an hour{more}. gavel cluster down NAME ends one."))


def _usd(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"


app = single_command(status)
