"""A file that a command was told to write."""

from pathlib import Path

from gavel.base.errors import GavelError


def write_file(path: Path, text: str) -> None:
    """Raises `GavelError` where it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GavelError(
            f"{path} cannot be written: {error.strerror or error}", "Make its directory, or name another file."
        ) from error
