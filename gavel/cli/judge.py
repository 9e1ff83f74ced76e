"""`gavel judge …`: the commands around the judge itself, each in a module of its own."""

from pathlib import Path
from typing import Annotated

import typer

from gavel.cli.judge_golden import golden_command
from gavel.cli.judge_rubric import rubric_command
from gavel.cli.judge_simulate import simulate

app = typer.Typer(name="judge", no_args_is_help=True, help="Draft a rubric, and put the judge itself to the test.")
app.command("rubric")(rubric_command)
app.command("golden")(golden_command)
app.command("simulate")(simulate)


@app.command("report")
def judge_report(
    file: Annotated[Path, typer.Argument(help="Judged groups: what `gavel score --out` wrote, or a run's .jsonl.zst.")],
    reference: Annotated[
        str | None, typer.Option(help="Metric or field to compare with. Default: independent_reward, if there is one.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Field (dotted path) that groups rows of single trajectories.")] = None,
    html: Annotated[Path | None, typer.Option(help="Where to write the page. Default: beside FILE.")] = None,
) -> None:
    """Compare a judge with a reference, with other judges and with itself, and look for its biases."""
    from gavel.cli.judge_report import report_command

    report_command(file, reference, by, html)
