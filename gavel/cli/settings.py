"""Settings from `.env` and the environment.

An environment variable wins over `.env`. A key that is listed in `.env` without a value counts as not set. Importing
this reads nothing.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from dotenv import dotenv_values

from gavel.base.errors import GavelError

STAND_IN = "stand-in"
"""The command line's default judge: rules, no key."""
LIKELIHOOD = "likelihood"
"""The judge of `gavel demo --real`: likelihoods under the frozen base, with which it is registered when it is asked."""


class SettingsError(GavelError):
    """A setting cannot be read."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of this process. API keys are read by LiteLLM."""

    judge_model: str | None
    """`GAVEL_JUDGE_MODEL`; None = not set."""
    runs: Path
    """`GAVEL_RUNS`: the directory that holds all runs."""
    wandb: Literal["online", "offline", "off"]
    """`WANDB_MODE`; when that is not set, online if there is a WANDB_API_KEY."""

    @property
    def judge(self) -> str:
        """The judge model to use when the user names none."""
        return self.judge_model or STAND_IN

    @classmethod
    def read(cls) -> Self:
        """Reads the environment as it is now."""
        from gavel.trainer.runs.run_directory import (
            runs_root,  # takes most of a second, which `gavel --help` should not
        )
        from gavel.trainer.runs.trackers import wandb_mode

        return cls(
            judge_model=os.environ.get("GAVEL_JUDGE_MODEL", "").strip() or None,
            runs=runs_root(),
            wandb=wandb_mode(),
        )


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
