"""Experiment trackers: a run's metrics, groups and report in another program, beside the run directory.

    tracker = open_tracker("trackio", Tracked(directory, "desk", "one"))
    tracker.log(1, "train", {"reward": 0.5})
    tracker.log_groups(1, "train", groups)

Without a choice it is Weights & Biases where its own environment variables ask for it, and none otherwise. The run
directory stays the record: what a tracker is sent is never read back.
"""

import contextlib
import contextvars
import importlib
import importlib.util
import io
import logging
import os
import secrets
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from gavel.base.errors import GavelError
from gavel.base.extras import install_line
from gavel.scenarios.formats.exported import Losses, Text, Turn, turns
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

logger = logging.getLogger(__name__)

TrackerName = Literal["wandb", "trackio", "none"]
Values = Mapping[str, float | int | bool | str]
_PACKAGES = {"wandb": "train", "trackio": "trackio"}
"""The package of each, which is called as the tracker is, and the extra that brings it."""


class TrackerError(GavelError):
    """A tracker is not installed, or does not take a run."""


@dataclass(frozen=True, slots=True)
class Tracked:
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
    if name != "none" and importlib.util.find_spec(name) is None:
        raise TrackerError(
            f"the tracker {name} is not installed.", f"{install_line(_PACKAGES[name])}, or --tracker none"
        )
    return name


def open_tracker(name: TrackerName, run: Tracked) -> Tracker | None:
    """The run at the tracker; None without one. Raises `TrackerError`."""
    if name == "none":
        return None
    return WandbTracker(run) if name == "wandb" else TrackioTracker(run)


class WandbTracker:
    """Metrics under `<split>/<name>`, a table `<split>/groups` for each step, and the report as a page.

    Offline (`WANDB_MODE=offline`) all of it lies in the run directory, for `wandb sync`.
    """

    def __init__(self, run: Tracked) -> None:
        """Begins the run there, or goes on with it. Raises `TrackerError`."""
        import wandb
        from wandb.errors import Error

        name, _ = run.mark("wandb", secrets.token_hex(8))
        try:
            self._run: Any = wandb.init(
                project=run.project,
                name=run.name,
                id=name,
                resume="allow",
                dir=str(run.directory),
                settings=wandb.Settings(console="off", silent=True),
            )
        except Error as error:
            raise TrackerError(
                f"W&B does not take the run: {error}", "WANDB_MODE=offline keeps it here; --tracker none does without."
            ) from error
        self._run.define_metric("*", step_metric="training_step")

    def log(self, step: int, split: str, values: Values) -> None:
        self._run.log({f"{split}/{name}": value for name, value in values.items()} | {"training_step": step})

    def log_groups(self, step: int, split: str, groups: Sequence[TrajectoryGroup]) -> None:
        import wandb

        found: Any = rows(step, groups)
        table = wandb.Table(columns=list(COLUMNS), data=found, allow_mixed_types=True)
        self._run.log({f"{split}/groups": table, "training_step": step})

    def log_report(self, page: Path) -> None:
        import wandb

        with page.open(encoding="utf-8") as stream:
            self._run.log({"report": wandb.Html(stream, inject=False)})

    def finish(self) -> None:
        self._run.finish()


class TrackioTracker:
    """Metrics, a table of each step's groups, and the report, in files of this machine.

    `trackio show --project PROJECT` shows them; TRACKIO_DIR says where they lie, TRACKIO_SPACE_ID and
    TRACKIO_SERVER_URL send them elsewhere, as trackio itself reads them.
    """

    def __init__(self, run: Tracked) -> None:
        """Begins the run there, or goes on with it. Raises `TrackerError`."""
        name, known = run.mark("trackio", run.name)
        trackio = self._trackio = importlib.import_module("trackio")
        try:
            with _quietly():
                # In a context of its own: trackio ends the run that is the current one of the caller's.
                self._run: Any = contextvars.copy_context().run(
                    trackio.init,
                    project=run.project,
                    name=name,
                    resume="allow" if known else "never",
                    embed=False,
                    auto_log_gpu=False,
                    auto_log_cpu=False,
                )
        except (OSError, RuntimeError, ValueError) as error:
            raise TrackerError(
                f"trackio does not take the run: {error}",
                "Set TRACKIO_DIR, or choose --tracker none.",
            ) from error

    def log(self, step: int, split: str, values: Values) -> None:
        self._run.log({f"{split}/{name}": value for name, value in values.items()}, step=step)

    def log_groups(self, step: int, split: str, groups: Sequence[TrajectoryGroup]) -> None:
        table = self._trackio.Table(columns=list(COLUMNS), data=rows(step, groups))
        self._run.log({f"{split}/groups": table}, step=step)

    def log_report(self, page: Path) -> None:
        self._run.log({"report": self._trackio.Html(str(page))})

    def finish(self) -> None:
        with _quietly():
            self._run.finish()


@contextlib.contextmanager
def _quietly() -> Generator[None]:
    """Redirects trackio's printed lines to the log."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        yield
    for line in printed.getvalue().splitlines():
        logger.info("%s", line)


GROUPS = 16
"""Groups of a step that are shown."""
CHARACTERS = 8_000
"""Max characters shown of a member's text."""
COLUMNS = (
    *("step", "group", "member", "status", "reward", "score", "standard_error", "judge_cost_usd"),
    *("explanation", "flags", "text"),
)
Cell = str | int | float | None


def rows(step: int, groups: Sequence[TrajectoryGroup]) -> list[list[Cell]]:
    """A row of `COLUMNS` for each member of the first groups, and one that tells how many groups are not shown."""
    found = [
        _row(step, index, number, group) for index, group in enumerate(groups[:GROUPS]) for number in range(len(group))
    ]
    if (more := len(groups) - GROUPS) > 0:
        told = f"{more:,} more groups of this step are in the run directory"
        found.append([step, GROUPS, *[None] * (len(COLUMNS) - 3), told])
    return found


def _row(step: int, index: int, number: int, group: TrajectoryGroup) -> list[Cell]:
    member, losses = group.trajectories[number], Losses()
    judgement = member.judgement
    text = "\n\n".join(_said(member))
    known: dict[str, Cell] = {
        "step": step,
        "group": index,
        "member": number,
        "judge_cost_usd": None if group.judgement is None else group.judgement.cost_usd,
        "status": member.status,
        "reward": losses.number(member.reward),
        "score": losses.number(judgement.score) if judgement else None,
        "standard_error": losses.number(judgement.standard_error) if judgement else None,
        "explanation": losses.text(judgement.explanation) or None if judgement else None,
        "flags": ", ".join(judgement.flags) or None if judgement else None,
        "text": text,
    }
    if len(text) > CHARACTERS:
        known["text"] = f"{text[:CHARACTERS]}… ({len(text) - CHARACTERS:,} characters more)"
    return [known[name] for name in COLUMNS]


def _said(trajectory: Trajectory) -> Iterator[str]:
    for turn in turns(trajectory.histories()[0], Losses()):
        calls = "".join(f"\n→ {call.name}({call.arguments})" for call in turn.calls)
        yield f"[{turn.role}] {_text(turn)}{calls}"


def _text(turn: Turn) -> str:
    return "\n".join(part.text if isinstance(part, Text) else f"[{part.kind}]" for part in turn.parts)
