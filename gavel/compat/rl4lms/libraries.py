"""The libraries of the extra `rl4lms`, imported when they are needed."""

import importlib
from typing import Any

from gavel.base.errors import GavelError
from gavel.base.extras import install_line


class MissingLibraryError(GavelError, ImportError):
    """A library of the extra is not installed."""


def imported(module: str) -> Any:
    """The module. Raises `MissingLibraryError`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingLibraryError(
            f"gavel.compat.rl4lms needs {error.name or module}, which is not installed.",
            install_line("rl4lms"),
        ) from error
