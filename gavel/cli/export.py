"""`gavel export`: a run's policy as a directory that other programs load; `gavel export trajectories` what it did."""

from pathlib import Path
from typing import Annotated

import typer

from gavel.cli.lazy_commands import single_command
from gavel.extras import need_extra
from gavel.trainer.config import ExportDtype, ExportForm


def export(
    run: Annotated[str, typer.Argument(help="A run as `gavel runs` lists it (desk/qwen3-4b), or its directory.")],
    form: Annotated[
        ExportForm, typer.Option(help="merged: a plain model of transformers; adapter: the PEFT adapter alone.")
    ] = "merged",
    dtype: Annotated[ExportDtype, typer.Option(help="Of merged weights; auto: as the base's own files.")] = "auto",
    step: Annotated[int | None, typer.Option(min=0, help="Default: the newest; 0: before training.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default: a directory under `exports` of the run.")] = None,
) -> None:
    """Write a run's policy as a plain model directory, with its adapter merged.

    Nothing is written over, and the directory appears only when it is whole.

    gavel export trajectories … writes what an agent did, for other programs.
    """
    need_extra("train", "gavel export")
    from gavel.trainer.backends.run_export import export_run
    from gavel.trainer.runs.run_directory import runs_root

    directory = Path(run)
    if not (directory / "model.json").is_file():
        directory = runs_root() / run
    typer.echo(export_run(directory, form, dtype=dtype, step=step, out=out))


app = single_command(export, {"trajectories": "gavel.cli.export_trajectories"})
