"""`gavel export trajectories`: what an agent did, in the format of another program."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gavel.base.errors import GavelError
from gavel.cli.lazy_commands import single_command
from gavel.cli.named_run import find_run
from gavel.scenarios.formats.export import MARGIN, export_file, export_formats, stored_groups
from gavel.scenarios.formats.exported import StoredGroup
from gavel.scenarios.formats.reading import read_file
from gavel.scenarios.trajectory_store import TrajectoryStore

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
    return _read(chosen)


def _read(chosen: list[tuple[Path, str, int]]) -> Iterator[StoredGroup]:
    for path, name, number in chosen:
        for index, group in enumerate(TrajectoryStore(path).read()):
            yield StoredGroup(group, index, name, number)


def _steps(found: list[tuple[Path, str, int]], name: str) -> str:
    steps = [each[2] for each in found if each[1] == name]
    return str(steps[0]) if len(steps) == 1 else f"{min(steps)} to {max(steps)}"


def _model(run: Path) -> str | None:
    """The policy's name, as the endpoint serves it: that of the run."""
    try:
        return str(json.loads((run / "model.json").read_text(encoding="utf-8"))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


app = single_command(trajectories)
