"""Files of a run that clients may fetch: its checkpoints, exports and trajectories."""

from pathlib import Path

from gavel.trainer.runs.file_hash import file_sha256

_SERVED = ("checkpoints", "exports", "trajectories")


def served_files(directory: Path) -> dict[str, str]:
    """The SHA-256 of each file in `directory`, by its path there."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(file.relative_to(directory)): file_sha256(file) for file in files}


def served_file(run: Path, name: str) -> Path | None:
    """The file `name` of a run directory; None when there is none that may be fetched."""
    file, root = (run / name).resolve(), run.resolve()
    if not file.is_relative_to(root) or file.relative_to(root).parts[:1] not in [(part,) for part in _SERVED]:
        return None
    return file if file.is_file() else None
