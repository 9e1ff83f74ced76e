"""Whether a directory can hold runs: a mounted bucket often cannot append to a file, or rename one or a directory.

    check_mount(Path("/mnt/bucket/runs/desk/clerk"))

It tries what a run does later, on files of its own, before anything of a run is written: a mount that would lose rows
of metrics, or half a checkpoint's files, is refused at once.
"""

import shutil
from pathlib import Path

_TRIED = ".mount_check"


class MountError(OSError):
    """A directory lacks something that runs need."""


def check_mount(directory: Path) -> None:
    """Raises `MountError`, which says what the directory cannot do."""
    tried = directory / _TRIED
    doing = "make a directory"
    try:
        shutil.rmtree(tried, ignore_errors=True)
        (tried / "unfinished").mkdir(parents=True)
        doing = "write a file"
        file = tried / "unfinished" / "rows"
        file.write_text("1\n")
        doing = "append to a file"
        with file.open("a") as stream:
            stream.write("2\n")
            stream.flush()
        if file.read_text() != "1\n2\n":
            raise OSError("what was appended is not there")
        doing = "replace a file by renaming another"
        (tried / "later").write_text("3\n")
        (tried / "later").replace(file)
        if file.read_text() != "3\n":
            raise OSError("the old content is still there")
        doing = "rename a directory"
        (tried / "unfinished").rename(tried / "whole")
        if (tried / "whole" / "rows").read_text() != "3\n":
            raise OSError("its files did not come along")
    except OSError as error:
        raise MountError(f"cannot {doing}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(tried, ignore_errors=True)
