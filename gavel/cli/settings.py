"""Settings from `.env` and the environment.

An environment variable wins over `.env`. A key that is listed in `.env` without a value counts as not set. Importing
this reads nothing.
"""

import os
from pathlib import Path

from dotenv import dotenv_values

from gavel.base.errors import GavelError

STAND_IN = "stand-in"
"""The command line's default judge: rules, no key."""
LIKELIHOOD = "likelihood"
"""The judge of `gavel demo --real`: likelihoods under the frozen base, with which it is registered when it is asked."""


class SettingsError(GavelError):
    """A setting cannot be read."""


def load_dotenv(directory: Path | None = None) -> None:
    """Adds the values of `.env` in `directory` (default: the current one) to the environment, if there is one.

    Raises `SettingsError` when it cannot be read.
    """
    path = (directory or Path.cwd()) / ".env"
    try:
        values = dotenv_values(path) if path.is_file() else {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}", "Make it a readable text file in UTF-8.") from error
    for name, value in values.items():
        if value:
            os.environ.setdefault(name, value)
