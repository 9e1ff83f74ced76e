"""One server for a directory of runs: two would each forget what clients have registered with the other.

The lock is the file's (flock), so a server that is killed leaves none behind. What the file holds is told to the next.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Generator
from pathlib import Path

from gavel.trainer.runs.run_directory import RunDirectoryError

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
