"""`gavel export-verl`: a scenario as a directory that verl users launch."""

from pathlib import Path
from typing import Annotated

import typer

NAME = "export-verl"
HELP = "Write a scenario for verl: datasets, a reward file that asks a judge service, tools, run script."


def command(
    source: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A shipped scenario, file.py, or file.py:variable.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory to write.")],
    model: Annotated[str, typer.Option(help="Base model that verl trains.")] = "Qwen/Qwen3-4B",
    judge_url: Annotated[str, typer.Option(help="Address of the judge service.")] = "http://127.0.0.1:8080",
    group_size: Annotated[int, typer.Option(min=2, help="Samples of a prompt, which the judge compares.")] = 8,
    train: Annotated[int, typer.Option(min=1, help="Tasks to train on, at most.")] = 10_000,
    held_out: Annotated[
        int | None, typer.Option(min=1, help="Held-out tasks, at most; as many as --train, up to 512.")
    ] = None,
) -> None:
    """Write a scenario for verl: datasets, a reward file that asks a judge service, tools, run script, README."""
    from gavel.integrations.verl.launch import VerlLaunch, export_verl
    from gavel.scenarios.scenario import find_scenario

    scenario = find_scenario(source)
    path, colon, variable = source.partition(":")
    reference = f"{Path(path).resolve()}{colon}{variable}" if path.endswith(".py") else source
    for file in export_verl(
        scenario, VerlLaunch(reference, model, judge_url, group_size, train, held_out or min(train, 512)), out
    ):
        typer.echo(str(file))
