"""What tells the directory of an export from every other one, so that nothing else is ever taken for it or replaced."""

import json
from pathlib import Path
from typing import Any

from gavel.base.errors import GavelError

EXPORT_MARK = "gavel_export.json"


class ExportError(GavelError):
    """A model cannot be exported."""


def read_export_mark(directory: Path) -> Any:
    """What is exported there; None for a directory that is no export."""
    try:
        return json.loads((directory / EXPORT_MARK).read_text())
    except (OSError, ValueError):
        return None


def taken(directory: Path) -> ExportError:
    """Something else is there."""
    return ExportError(f"{directory} is there already, and is not this export", "Name another directory with --out.")
