"""`gavel pull`: a checkpoint out of a store, as a run here."""

from typing import Annotated

import typer

from gavel.cli.lazy_commands import single_command


def pull(
    address: Annotated[str, typer.Argument(help="A store's address, as of `gavel push`, and /project/name.")],
    step: Annotated[int | None, typer.Option(min=0, help="Default: the newest.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the run here. Default: as it is there.")] = None,
) -> None:
    """Copy a checkpoint that was pushed into a run directory here, from where training and export go on."""
    from gavel.trainer.runs.run_directory import run_path, runs_root
    from gavel.trainer.runs.storage.store import open_store, pull_checkpoint, split_place

    home, project, last = split_place(address)
    key = project, name or last
    found = pull_checkpoint(open_store(home), f"{project}/{last}", step, runs_root(), key)
    typer.echo(run_path(runs_root(), *key) / "checkpoints" / f"{found:06d}")
    run = "/".join(key)
    told = f"Step {found} of the run {run} is here now. As a model for other programs: gavel export {run}"
    typer.echo(told, err=True)


app = single_command(pull)
