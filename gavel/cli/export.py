"""`gavel export`: a run's policy as a directory that other programs load; `gavel export trajectories` what it did."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gavel.base.errors import GavelError
from gavel.base.extras import need_extra
from gavel.cli.lazy_commands import single_command
from gavel.cli.named import BackendUrl, find_run, of_this_machine, one_step, run_at
from gavel.scenarios.formats.export import MARGIN, export_file, export_formats, stored_groups
from gavel.scenarios.formats.exported import StoredGroup
from gavel.scenarios.formats.reading import read_file
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.config import ExportDtype, ExportForm
from gavel.trainer.runs.run_directory import split_step


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
    from gavel.trainer.backends.run_export import export_run

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

    async with run_at(url, run) as (backend, model, named):
        one_step(run, named, step is not None, "--step")
        return await backend.export(model, form, dtype, step if named is None else named, out)


_STORE = ".jsonl.zst"
if TYPE_CHECKING:
    _Format = str
else:
    _Format = Literal[tuple(export_formats())]  # those of installed integrations, too


def trajectories(
    source: Annotated[
        str, typer.Argument(metavar="RUN|FILE", help="A run, or a file of any format that `gavel score` reads.")
    ],
    form: Annotated[_Format, typer.Option("--format", help="docs/export.md says what each of them holds.")],
    out: Annotated[
        str,
        typer.Option("--out", "-o", help="File to write; otel: also the http address of a collector."),
    ],
    split: Annotated[str | None, typer.Option(help="Of a run: train, held_out, … Default: all.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Of a run. Default: all.")] = None,
    margin: Annotated[
        float | None,
        typer.Option(min=0.0, help=f"dpo: smallest difference of two scores that is a preference. Default: {MARGIN}."),
    ] = None,
    above: Annotated[float | None, typer.Option(help="sft: what the score of a conversation must exceed.")] = None,
) -> None:
    """Write trajectories in another program's format; what it cannot hold is counted and named.

    Nothing is written over, and the file appears only when it is whole.
    """
    for value, name, of in ((margin, "--margin", "dpo"), (above, "--above", "sft")):
        if value is not None and form != of:
            raise GavelError(f"{name} belongs to --format {of}.", f"Leave {name} out.")
    margin = MARGIN if margin is None else margin
    run = find_run(source)
    if run is not None:
        groups = _of_run(run, split, step)
        told = export_file(
            groups, form, out, margin=margin, above=above, model=_model(run), name="/".join(run.resolve().parts[-2:])
        )
    else:
        if split is not None or step is not None:
            raise GavelError(f"{source} is no run, so it has no splits and steps.", "Leave --split and --step out.")
        if not Path(source).exists() and source != "-":
            raise GavelError(
                f"there is no run and no file {source}.", "Name a run as `gavel runs` lists it, or a file."
            )
        reading = read_file(Path(source))
        typer.echo(reading.summary, err=True)
        for note in reading.notes:
            if note.startswith("left out"):  # the others tell what a judge should compare
                typer.echo(note, err=True)
        told = export_file(stored_groups(reading.groups), form, out, margin=margin, above=above, name=Path(source).name)
    for note in told.notes:
        typer.echo(note, err=True)
    typer.echo(told.summary)


def _of_run(run: Path, split: str | None, step: int | None) -> Iterator[StoredGroup]:
    """The groups of a run's stores, by split and step. Raises `GavelError` where there are none."""
    root = run / "trajectories"
    found = [
        (path, path.parent.relative_to(root).as_posix(), int(path.name.removesuffix(_STORE)))
        for path in sorted(root.rglob(f"*{_STORE}"))
        if path.name.removesuffix(_STORE).isdecimal()
    ]
    if not found:
        raise GavelError(f"{run} has no trajectories yet.", "Train or evaluate it first.")
    chosen = [each for each in found if split in (None, each[1]) and step in (None, each[2])]
    if not chosen:
        splits = ", ".join(f"{name} (steps {_steps(found, name)})" for name in dict.fromkeys(each[1] for each in found))
        raise GavelError(f"{run} has no trajectories of that split and step.", f"It has {splits}.")
    return (
        StoredGroup(group, index, name, number)
        for path, name, number in chosen
        for index, group in enumerate(TrajectoryStore(path).read())
    )


def _steps(found: list[tuple[Path, str, int]], name: str) -> str:
    steps = [each[2] for each in found if each[1] == name]
    return str(steps[0]) if len(steps) == 1 else f"{min(steps)} to {max(steps)}"


def _model(run: Path) -> str | None:
    """The policy's name, as the endpoint serves it: that of the run."""
    try:
        return str(json.loads((run / "model.json").read_text(encoding="utf-8"))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


app = single_command(export, {"trajectories": trajectories})
