"""The run that `gavel push`, `deploy` and `export` name: one of this machine, or of a backend with --backend-url."""

import contextlib
from collections.abc import AsyncGenerator, Generator

from gavel.base.errors import GavelError
from gavel.trainer.backends.remote.client import RemoteBackend
from gavel.trainer.backends.skypilot.backend import CLUSTER_SCHEME, SkyPilotBackend
from gavel.trainer.model_spec import TrainableSpec
from gavel.trainer.runs.run_directory import NamedRunError, runs_root


async def remote_backend(url: str) -> RemoteBackend:
    """The backend at an address, or on the cluster of `sky://CLUSTER`; to be closed by the caller."""
    if url.startswith(CLUSTER_SCHEME):
        return await SkyPilotBackend.attach(url.removeprefix(CLUSTER_SCHEME))
    return RemoteBackend(url)


@contextlib.asynccontextmanager
async def run_at(url: str, named: str) -> AsyncGenerator[tuple[RemoteBackend, TrainableSpec, int | None]]:
    """The backend, its run `project/name`, and the step that is named with `@12`. Raises `GavelError`."""
    head, at, tail = named.rpartition("@")
    text, step = (head, int(tail)) if at and tail.isdecimal() else (named, None)
    project, slash, name = text.partition("/")
    if not slash:
        raise GavelError(f"{named!r} names no run of a backend", "Name project and run: desk/clerk, or desk/clerk@12.")
    backend = await remote_backend(url)
    try:
        yield backend, await backend.find(project, name), step
    finally:
        await backend.close()


@contextlib.contextmanager
def of_this_machine(named: str) -> Generator[None]:
    """What is told of a run that is not here says how one of a backend is named."""
    try:
        yield
    except NamedRunError as error:
        raise GavelError(
            f"there is no run {named!r} in {runs_root()}",
            "Name one as `gavel runs` lists it (desk/clerk, desk/clerk@12). One that was trained with --backend-url is "
            "there alone: give the same --backend-url.",
        ) from error


def one_step(run: str, step: int | None, given: object, option: str) -> None:
    """Raises `GavelError` where both `desk/clerk@12` and an option choose a step."""
    if step is not None and given:
        raise GavelError(f"{run} names a step, and {option} another", "Leave one of them out.")
