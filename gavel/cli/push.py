"""`gavel push` and `gavel pull`: a run's checkpoint, copied to a store, or out of one."""

import asyncio
from typing import Annotated

import typer

from gavel.cli.lazy_commands import single_command
from gavel.cli.named import BackendUrl, of_this_machine, run_at
from gavel.trainer.runs.run_directory import NamedCheckpointError, find_checkpoint, run_path, runs_root
from gavel.trainer.runs.storage.store import open_store, pull_checkpoint, push_checkpoint, split_place


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

    async with run_at(url, run) as (backend, model, step):
        return await backend.push(model, address, backend.step(model) if step is None else step)


def pull(
    address: Annotated[str, typer.Argument(help="A store's address, as of `gavel push`, and /project/name.")],
    step: Annotated[int | None, typer.Option(min=0, help="Default: the newest.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the run here. Default: as it is there.")] = None,
) -> None:
    """Copy a checkpoint that was pushed into a run directory here, from where training and export go on."""

    home, project, last = split_place(address)
    key = project, name or last
    found = pull_checkpoint(open_store(home), f"{project}/{last}", step, runs_root(), key)
    typer.echo(run_path(runs_root(), *key) / "checkpoints" / f"{found:06d}")
    run = "/".join(key)
    told = f"Step {found} of the run {run} is here now. As a model for other programs: gavel export {run}"
    typer.echo(told, err=True)


app = single_command(push)
pull_app = single_command(pull)
