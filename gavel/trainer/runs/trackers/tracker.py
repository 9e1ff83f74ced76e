"""What a tracker does, and which one a run has.

Without a choice it is Weights & Biases where its own environment variables ask for it, and none otherwise.
"""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from gavel.base.errors import GavelError
from gavel.base.extras import install_line
from gavel.scenarios.group import TrajectoryGroup

TrackerName = Literal["wandb", "trackio", "none"]
Values = Mapping[str, float | int | bool | str]
_PACKAGES = {"wandb": "train", "trackio": "trackio"}
"""The package of each, which is called as the tracker is, and the extra that brings it."""


class TrackerError(GavelError):
    """A tracker is not installed, or does not take a run."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """The run that is tracked."""

    directory: Path
    project: str
    name: str

    def mark(self, tracker: str, fresh: str) -> tuple[str, bool]:
        """The run's name or id at a tracker, and whether it had one: a run directory made anew is another run."""
        file = self.directory / f"{tracker}_id"
        if file.exists():
            return file.read_text(), True
        file.write_text(fresh)
        return fresh, False


class Tracker(Protocol):
    """One run at a tracker. Every method may raise `TrackerError`."""

    def log(self, step: int, split: str, values: Values) -> None:
        """Adds a row of metrics, as `<split>/<name>`."""
        ...

    def log_groups(self, step: int, split: str, groups: Sequence[TrajectoryGroup]) -> None:
        """Shows the first groups of a step: their members, scores and what they said."""
        ...

    def log_report(self, page: Path) -> None:
        """Shows the run's page."""
        ...

    def finish(self) -> None:
        """Sends what is left, and ends the run there."""
        ...


def wandb_mode() -> Literal["online", "offline", "off"]:
    """The mode of Weights & Biases by the environment variables."""
    match os.environ.get("WANDB_MODE", ""):
        case "online" | "offline" as mode:
            return mode
        case "" if os.environ.get("WANDB_API_KEY"):
            return "online"
        case _:
            return "off"


def chosen_tracker(name: TrackerName | None) -> TrackerName:
    """The tracker of a run. Raises `TrackerError` for one that is named and not installed."""
    if name is None:
        return "none" if wandb_mode() == "off" else "wandb"
    _need(name)
    return name


def open_tracker(name: TrackerName, run: Tracked) -> Tracker | None:
    """The run at the tracker; None without one. Raises `TrackerError`."""
    _need(name)
    match name:
        case "wandb":
            from gavel.trainer.runs.trackers.wandb_tracker import WandbTracker

            return WandbTracker(run)
        case "trackio":
            from gavel.trainer.runs.trackers.trackio_tracker import TrackioTracker

            return TrackioTracker(run)
        case "none":
            return None


def _need(name: TrackerName) -> None:
    if name != "none" and importlib.util.find_spec(name) is None:
        raise TrackerError(
            f"the tracker {name} is not installed.", f"{install_line(_PACKAGES[name])}, or --tracker none"
        )
