"""`gavel push`: a run's checkpoint, copied to a store."""

import asyncio
from typing import Annotated

import typer

from gavel.cli.backend_url import BackendUrl
from gavel.cli.lazy_commands import single_command


def push(
    run: Annotated[str, typer.Argument(help="A run as `gavel runs` lists it (desk/qwen3-4b), @12 for its step 12.")],
    address: Annotated[
        str,
        typer.Argument(help="s3://bucket/prefix, hf://owner/repository, wandb://entity/project/name, or a directory."),
    ],
    backend_url: BackendUrl = None,
) -> None:
    """Copy a run's checkpoint to a store or a directory; the newest, unless a step is named.

    A push that was cut off goes on where it was. A checkpoint counts there when all of it has arrived. That of a
    backend is pushed from there, with the credentials of there.
    """
    from gavel.cli.kept_run import of_this_machine
    from gavel.trainer.runs.run_directory import NamedCheckpointError, find_checkpoint, runs_root
    from gavel.trainer.runs.storage.store import open_store, push_checkpoint

    if backend_url is not None:
        _say_pushed(asyncio.run(_push_at(backend_url, run, address)), address, run.partition("@")[0])
        return
    with of_this_machine(run):
        found = find_checkpoint(run, runs_root())
    if found.parent.name != "checkpoints":
        raise NamedCheckpointError(f"{found} is the adapter of no run", "Name a run as `gavel runs` lists it.")
    directory = found.parent.parent
    place = f"{directory.parent.name}/{directory.name}"
    _say_pushed(push_checkpoint(directory, int(found.name), open_store(address), place), address, place)


def _say_pushed(stored: str, address: str, run: str) -> None:
    """The address alone on stdout, for scripts."""
    typer.echo(stored)
    told = f"The checkpoint is kept there. To fetch it on another machine: gavel pull {address.rstrip('/')}/{run}"
    typer.echo(told, err=True)


async def _push_at(url: str, run: str, address: str) -> str:
    from gavel.cli.kept_run import run_at

    async with run_at(url, run) as (backend, model, step):
        return await backend.push(model, address, backend.step(model) if step is None else step)


app = single_command(push)
