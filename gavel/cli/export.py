"""`gavel export`: a run's policy as a directory that other programs load; `gavel export trajectories` what it did."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from gavel.base.extras import need_extra
from gavel.cli.backend_url import BackendUrl
from gavel.cli.lazy_commands import single_command
from gavel.trainer.config import ExportDtype, ExportForm


def export(
    run: Annotated[str, typer.Argument(help="A run as `gavel runs` lists it (desk/qwen3-4b), @12 for its step 12.")],
    form: Annotated[
        ExportForm, typer.Option(help="merged: a plain model of transformers; adapter: the PEFT adapter alone.")
    ] = "merged",
    dtype: Annotated[ExportDtype, typer.Option(help="Of merged weights; auto: as the base's own files.")] = "auto",
    step: Annotated[int | None, typer.Option(min=0, help="Default: the newest; 0: before training.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default: a directory under `exports` of the run.")] = None,
    backend_url: BackendUrl = None,
) -> None:
    """Write a run's policy as a plain model directory, with its adapter merged.

    Nothing is written over, and the directory appears only when it is whole. A backend exports a run of its own, and
    the directory is fetched.

    gavel export trajectories … writes what an agent did, for other programs.
    """
    if backend_url is not None:
        _say_exported(asyncio.run(_export_at(backend_url, run, form, dtype, step, out)), form)
        return
    need_extra("train", "gavel export")
    from gavel.cli.kept_run import of_this_machine, one_step
    from gavel.trainer.backends.run_export import export_run
    from gavel.trainer.runs.run_directory import split_step

    with of_this_machine(run):
        directory, named = split_step(run)
    one_step(run, named, step is not None, "--step")
    _say_exported(export_run(directory, form, dtype=dtype, step=step if named is None else named, out=out), form)


def _say_exported(path: Path, form: ExportForm) -> None:
    """The directory alone on stdout, for scripts; on stderr what it is and what to type next."""
    typer.echo(path)
    if form == "merged":
        told = f"This directory is a plain model of transformers. Serve it: vllm serve {path}"
    else:
        told = f'This directory is a PEFT adapter. Load it over its base: PeftModel.from_pretrained(base, "{path}")'
    typer.echo(told, err=True)


async def _export_at(
    url: str, run: str, form: ExportForm, dtype: ExportDtype, step: int | None, out: Path | None
) -> Path:
    from gavel.cli.kept_run import one_step, run_at

    async with run_at(url, run) as (backend, model, named):
        one_step(run, named, step is not None, "--step")
        return await backend.export(model, form, dtype, step if named is None else named, out)


app = single_command(export, {"trajectories": "gavel.cli.export_trajectories"})
