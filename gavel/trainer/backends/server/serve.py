"""Runs a backend's server in this process until it is told to stop.

One server for a directory of runs: two would each forget what clients have registered with the other.

The lock is the file's (flock), so a server that is killed leaves none behind. What the file holds is told to the next.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path

import uvicorn

from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.server.app import Activity, create_app
from gavel.trainer.runs.run_directory import RunDirectoryError
from gavel.trainer.serving.listener import AnnouncedServer, address_of, listen

_LOCK = "server.lock"


@contextlib.contextmanager
def held_root(root: Path) -> Generator[Callable[[str], None]]:
    """Holds the directory of runs for this process; gives a function that notes the address for whoever comes next.

    Raises `RunDirectoryError` where another server holds it, and where files cannot be locked or written.
    """
    path = root / ".backend" / _LOCK
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise RunDirectoryError(
            f"the runs in {root} cannot be written: {error.strerror}", "Choose another place: --runs or GAVEL_RUNS."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            other = file.read().strip() or "it is just starting"
            raise RunDirectoryError(
                f"another `gavel backend` serves the runs in {root} ({other})",
                "Use that one, or stop it first; for a server of its own choose another place: --runs.",
            ) from error
        except OSError as error:
            raise RunDirectoryError(
                f"{root} cannot hold runs: it cannot lock a file: {error.strerror}",
                "A mounted bucket often lacks this. Keep runs on a disk (--runs), and copy checkpoints to the bucket.",
            ) from error

        def note(said: str) -> None:
            file.truncate(0)
            file.write(f"{said}, process {os.getpid()} on {os.uname().nodename}")
            file.flush()

        note("starting")
        yield note
        file.truncate(0)


_IDLE_SECONDS = 600
_CLOSING_SECONDS = 3
"""Shutdown grace period for answers, seconds; whoever waits for a job asks the next server."""


async def serve(
    backend: LocalBackend,
    *,
    key: str,
    root: Path,
    host: str,
    port: int,
    announce: Callable[[str], None],
    idle_seconds: float | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT; then finishes the steps in progress. `announce` is told the address.

    With `idle_seconds` it also ends when no request and no job was there for so long.

    Raises `EndpointError`, and `RunDirectoryError` where another server has these runs.
    """
    with held_root(root) as note, contextlib.closing(listen(host, port)) as listener:
        activity = Activity()
        app = create_app(backend, key=key, root=root, activity=activity)
        config = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_CLOSING_SECONDS,
        )
        address = address_of(listener, host)
        note(address)
        server = AnnouncedServer(config, lambda: announce(address))
        loop = asyncio.get_running_loop()

        def stop() -> None:
            server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)

        async def stop_when_idle(seconds: float) -> None:
            await activity.wait_idle(seconds)
            stop()

        idle = None if idle_seconds is None else asyncio.create_task(stop_when_idle(idle_seconds))
        try:
            await server.serve(sockets=[listener])
        finally:
            if idle is not None:
                idle.cancel()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
