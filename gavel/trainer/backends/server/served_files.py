"""Files of a run that clients may fetch: its checkpoints and exports."""

import hashlib
from pathlib import Path

_SERVED = ("checkpoints", "exports")


def served_files(directory: Path) -> dict[str, str]:
    """The SHA-256 of each file in `directory`, by its path there."""
    hashes: dict[str, str] = {}
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        with file.open("rb") as stream:
            hashes[str(file.relative_to(directory))] = hashlib.file_digest(stream, "sha256").hexdigest()
    return hashes


def served_file(run: Path, name: str) -> Path | None:
    """The file `name` of a run directory; None when there is none that may be fetched."""
    file, root = (run / name).resolve(), run.resolve()
    if not file.is_relative_to(root) or file.relative_to(root).parts[:1] not in [(part,) for part in _SERVED]:
        return None
    return file if file.is_file() else None
