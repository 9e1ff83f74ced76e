"""`gavel judge …`: the commands around the judge itself, each in a module of its own."""

import typer

from gavel.drafting import rubric_command
from gavel.golden import golden_command
from gavel.judge_simulate import simulate

app = typer.Typer(name="judge", no_args_is_help=True, help="Draft a rubric, and put the judge itself to the test.")
app.command("rubric")(rubric_command)
app.command("golden")(golden_command)
app.command("simulate")(simulate)
