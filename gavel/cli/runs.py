"""Runs on disk: `gavel runs` lists them, `gavel report` writes a page of one, `gavel view` shows them in a browser."""

import hashlib
import json
import os
import secrets
import shlex
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.base.network import is_loopback
from gavel.cli.lazy_commands import single_command
from gavel.cli.named import find_run
from gavel.cli.terminal import plain, print_table, print_warning
from gavel.reports.run_figures import read_run
from gavel.reports.run_outcome import outcome_of_run
from gavel.reports.run_page import write_run_report
from gavel.trainer.runs.run_directory import runs_root
from gavel.trainer.runs.run_listing import RunSummary, read_runs

if TYPE_CHECKING:
    from gavel.reports.viewer.index import Index

_AGES = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def runs(
    directory: Annotated[Path | None, typer.Argument(help="Holds the runs. Default: GAVEL_RUNS, else runs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list; age in seconds.")] = False,
) -> None:
    """List the runs with their state and best figure.

    Ends with status 1 for a DIRECTORY that is not there.
    """
    root = runs_root(directory)
    if directory is not None and not directory.exists():
        raise GavelError(
            f"there is no directory {directory}.",
            "Name one that holds runs, or leave it out: gavel runs lists those of GAVEL_RUNS, else of ./runs.",
        )
    found = sorted(read_runs(root), key=lambda run: run.age)
    if as_json:
        typer.echo(json.dumps([asdict(run) for run in found], indent=1, default=str))
        return
    console = Console()
    if not found:
        console.print(plain(f"There are no runs in {root}. Start one: gavel demo, or gavel train SCENARIO."))
        return
    rows = [
        (
            run.name,
            run.state,
            f"{run.step}" if run.steps is None else f"{run.step}/{run.steps}",
            run.best,
            run.judge,
            _age(run.age),
        )
        for run in found
    ]
    print_table(console, ("run", "state", "step", "best", "judge", "age"), rows, right=("step", "age"))
    for run in found:
        if run.damage:
            print_warning(run.damage)


def _age(seconds: float) -> str:
    length, unit = next((age for age in _AGES if seconds >= age[0]), _AGES[-1])
    return f"{int(seconds / length)} {unit}"


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="As `gavel runs` lists it, or its directory.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: the run's report.html.")] = None,
) -> None:
    """Write a run's report as a page: curves, scores, what was left out, cost, samples; and say what came of the run.

    While it goes on or afterwards.
    """
    if (directory := find_run(run)) is None:
        raise GavelError(
            f"there is no run {run}.", "Name it as `gavel runs` lists it (project/name), or by its directory."
        )
    page, read = write_run_report(directory, out), read_run(directory)
    for line in outcome_of_run(directory, read.rows):
        typer.echo(line)
    typer.echo(f"Report: {page}")
    typer.echo(
        f"Open it in a browser; each transcript with its scores: gavel view {shlex.quote(str(directory))}", err=True
    )
    for line in read.damage:
        print_warning(line)


_UPDATE_SECONDS = 2.0
"""Seconds between two checks for new data on disk."""


def view(
    directory: Annotated[
        Path | None, typer.Argument(help="Runs and judged files, or one of them. Default: GAVEL_RUNS, else runs.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; beyond this machine with a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8095,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Read runs and judged files in the browser: what the agent did, and why it got its score.

    Shows runs as they go on. Nothing leaves this machine, and nothing is changed.
    """
    need_extra("service", "gavel view")
    import uvicorn

    from gavel.reports.viewer.app import create_app
    from gavel.reports.viewer.index import Index, holds_groups
    from gavel.trainer.serving.listener import address_of, listen

    shown = runs_root(directory).resolve()
    if not shown.exists():
        raise GavelError(f"there is no directory {shown}.", "Name one that holds runs or judged files: gavel view DIR.")
    if shown.is_file() and not holds_groups(shown):
        raise GavelError(
            f"{shown} is no judged file in JSON lines.",
            f"Judge it first: gavel score {shlex.quote(str(directory))} --out judged.jsonl.",
        )
    # the directory of projects: of a file its own, else above a project or a run in it
    root = shown.parent if shown.is_file() or next(shown.glob("*/model.json"), None) else shown
    if (shown / "model.json").is_file():
        root = shown.parent.parent
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    file = Path(cache, "gavel", "view", f"{hashlib.sha256(os.fsencode(shown)).hexdigest()[:20]}.sqlite")
    index = Index(root, file, shown)
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    listener = listen(host, port)
    stopping = threading.Event()

    def list_runs() -> list[RunSummary]:
        return [run for run in read_runs(root) if (root / run.name).is_relative_to(shown)]

    reader = threading.Thread(target=_keep_up, args=(index, list_runs, stopping), daemon=True)

    address = address_of(listener, host) + (f"/?{urlencode({'token': token})}" if token else "")
    typer.echo(f"Gavel viewer · {shown} · {address} · Ctrl-C ends it")
    reader.start()
    if open_browser and token is None and os.environ.get("DISPLAY", os.environ.get("BROWSER")):
        webbrowser.open(address)
    try:
        config = uvicorn.Config(
            create_app(index, list_runs, token=token), log_level="error", access_log=False, lifespan="off"
        )
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        stopping.set()
        reader.join(timeout=10)


def _keep_up(index: "Index", list_runs: Callable[[], list[RunSummary]], stopping: threading.Event) -> None:
    """Tells of damaged runs, then reads what is new until the end; a failure is told, and tried again."""
    for run in list_runs():
        if told_of_it := run.best if run.state == "unreadable" else run.damage:
            print_warning(told_of_it)
    told = ""
    while True:
        try:
            index.update(stopping.is_set)
            told = ""
        except GavelError as error:
            if error.message != told:
                typer.echo(f"{error.message}\n{error.remedy}", err=True)
            told = error.message
        if stopping.wait(_UPDATE_SECONDS):
            return


app, report_app, view_app = map(single_command, (runs, report, view))
