"""Whether the service's SQLite file can be where its settings say, found out before it is opened.

    check_place(Path("/srv/gavel/gavel_service.sqlite"))       raises ServiceError, with what to do

SQLite itself says "unable to open database file" of all these. Its write-ahead log is shared in memory, so processes of
two machines that have the file from one server would overwrite each other's work.
"""

import os
from pathlib import Path

from gavel.judge.service.errors import ServiceError

_MOUNTS = Path("/proc/self/mountinfo")
_OF_NETWORKS = {
    *("afs", "beegfs", "ceph", "cifs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"),
    *("fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
}
_ELSEWHERE = "Name a file on a disk of this machine, or a PostgreSQL (GAVEL_DATABASE_URL)."


def check_place(path: Path) -> None:
    """Raises `ServiceError` where the file cannot be opened and written, or is on a network file system."""
    file = path.absolute()
    folder = file.parent
    if not folder.is_dir():
        raise ServiceError(f"the database {path} cannot be opened: its directory does not exist.", "Make it first.")
    if file.is_dir():
        raise ServiceError(f"the database {path} cannot be opened: it is a directory.", "Name a file in it.")
    for place, what in ((folder, "its directory"), (file, "it")):
        if place.exists() and not os.access(place, os.R_OK | os.W_OK | (os.X_OK if place is folder else 0)):
            raise ServiceError(
                f"the database {path} cannot be used: {what} is read-only or not writable for user {os.geteuid()}.",
                f"Make {place} writable (SQLite also keeps its log in that directory), or name another --database.",
            )
    mounts = _MOUNTS.read_text(errors="replace") if _MOUNTS.exists() else ""
    kind = file_system(file.resolve(), mounts)
    if kind in _OF_NETWORKS:
        raise ServiceError(
            f"the database {path} is on a network file system ({kind}), which SQLite's log does not work on.",
            _ELSEWHERE,
        )


def file_system(file: Path, mounts: str) -> str:
    """The kind of the file system that a path is on, by the text of Linux's mountinfo; empty where it does not say."""
    best, found = -1, ""
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) < 5 or not after:
            continue
        point = Path(fields[4].encode().decode("unicode_escape").encode("latin-1").decode(errors="replace"))
        if file.is_relative_to(point) and len(point.parts) >= best:  # of two on one point the later one is seen
            best, found = len(point.parts), after.split()[0]
    return found
