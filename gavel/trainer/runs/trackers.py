"""Experiment trackers: a run's metrics, groups and report in another program, beside the run directory.

    tracker = Tracker("trackio", directory, "desk", "one")
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
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from gavel.base.errors import GavelError
from gavel.base.extras import install_line
from gavel.scenarios.formats.exported import Losses, is_text, turns
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

logger = logging.getLogger(__name__)

TrackerName = Literal["wandb", "trackio", "none"]
Values = Mapping[str, float | int | bool | str]
_PACKAGES = {"wandb": "train", "trackio": "trackio"}
"""The package of each, which is called as the tracker is, and the extra that brings it."""
GROUPS = 16
"""Groups of a step that are shown."""
CHARACTERS = 8_000
"""Max characters shown of a member's text."""
COLUMNS = (
    *("step", "group", "member", "status", "reward", "score", "standard_error", "judge_cost_usd"),
    *("explanation", "flags", "text"),
)
Cell = str | int | float | None


class TrackerError(GavelError):
    """A tracker is not installed, or does not take a run."""


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


class Tracker:
    """One run at a tracker: metrics as `<split>/<name>`, a table `<split>/groups` of each step, and the report.

    It begins there, or goes on, with the first row; nothing is sent by the tracker `none`.
    """

    def __init__(self, name: TrackerName | None, directory: Path, project: str, run: str) -> None:
        """Raises `TrackerError` for one that is named and not installed."""
        self._name: TrackerName = chosen_tracker(name)
        self._directory, self._project, self._run_name = directory, project, run
        self._run: Any = None

    def log(self, step: int, split: str, values: Values) -> None:
        """Adds a row of metrics. Raises `TrackerError` where the tracker does not take the run."""
        self._send({f"{split}/{name}": value for name, value in values.items()}, step)

    def log_groups(self, step: int, split: str, groups: Sequence[TrajectoryGroup]) -> None:
        """Shows the first groups of a step: their members, scores and what they said."""
        if self._name != "none":
            mixed = {"allow_mixed_types": True} if self._name == "wandb" else {}
            table = importlib.import_module(self._name).Table(columns=list(COLUMNS), data=rows(step, groups), **mixed)
            self._send({f"{split}/groups": table}, step)

    def finish(self, page: Path) -> None:
        """Shows the run's page, if there is one, sends what is left, and ends the run there."""
        if self._run is None:
            return
        if page.is_file():
            html = importlib.import_module(self._name).Html
            text = io.StringIO(page.read_text(encoding="utf-8"))
            self._run.log({"report": html(text, inject=False) if self._name == "wandb" else html(str(page))})
        with _quietly():
            self._run.finish()
        self._run = None

    def _send(self, values: dict[str, Any], step: int) -> None:
        if self._name == "none":
            return
        if self._run is None:
            self._run = self._open_wandb() if self._name == "wandb" else self._open_trackio()
        if self._name == "wandb":
            self._run.log({**values, "training_step": step})
        else:
            self._run.log(values, step=step)

    def _open_wandb(self) -> Any:
        """Offline (`WANDB_MODE=offline`) all of it lies in the run directory, for `wandb sync`."""
        import wandb
        from wandb.errors import Error

        own: dict[str, Any] = {"name": self._run_name, "id": mark(self._directory, "wandb", secrets.token_hex(8))[0]}
        own |= {"dir": str(self._directory), "settings": wandb.Settings(console="off", silent=True)}
        try:
            opened: Any = wandb.init(project=self._project, resume="allow", **own)
        except Error as error:
            raise TrackerError(
                f"W&B does not take the run: {error}", "WANDB_MODE=offline keeps it here; --tracker none does without."
            ) from error
        opened.define_metric("*", step_metric="training_step")
        return opened

    def _open_trackio(self) -> Any:
        """Files of this machine, which `trackio show --project PROJECT` shows.

        TRACKIO_DIR says where they lie, TRACKIO_SPACE_ID and TRACKIO_SERVER_URL send them elsewhere, as trackio reads
        them.
        """
        name, known = mark(self._directory, "trackio", self._run_name)
        own: dict[str, Any] = {"name": name, "resume": "allow" if known else "never", "embed": False}
        own |= {"auto_log_gpu": False, "auto_log_cpu": False}
        begin = importlib.import_module("trackio").init
        try:
            with _quietly():
                # In a context of its own: trackio ends the run that is the current one of the caller's.
                return contextvars.copy_context().run(begin, project=self._project, **own)
        except (OSError, RuntimeError, ValueError) as error:
            raise TrackerError(
                f"trackio does not take the run: {error}", "Set TRACKIO_DIR, or choose --tracker none."
            ) from error


def mark(directory: Path, tracker: str, fresh: str) -> tuple[str, bool]:
    """The run's name or id at a tracker, and whether it had one: a run directory made anew is another run."""
    file = directory / f"{tracker}_id"
    if file.exists():
        return file.read_text(), True
    file.write_text(fresh)
    return fresh, False


@contextlib.contextmanager
def _quietly() -> Generator[None]:
    """Redirects trackio's printed lines to the log."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        yield
    for line in printed.getvalue().splitlines():
        logger.info("%s", line)


def rows(step: int, groups: Sequence[TrajectoryGroup]) -> list[list[Cell]]:
    """A row of `COLUMNS` for each member of the first groups, and one that tells how many groups are not shown."""
    found: list[list[Cell]] = []
    for index, group in enumerate(groups[:GROUPS]):
        cost = None if group.judgement is None else group.judgement.cost_usd
        found += ([step, index, number, *_cells(member, cost)] for number, member in enumerate(group))
    if (more := len(groups) - GROUPS) > 0:
        told = f"{more:,} more groups of this step are in the run directory"
        found.append([step, GROUPS, *[None] * (len(COLUMNS) - 3), told])
    return found


def _cells(member: Trajectory, cost: float | None) -> list[Cell]:
    """From the column `status` on."""
    judged, losses, said = member.judgement, Losses(), list[str]()
    for turn in turns(member.histories()[0], losses):
        parts = "\n".join(part["text"] if is_text(part) else f"[{part['type']}]" for part in turn.parts)
        said.append(f"[{turn.role}] {parts}" + "".join(f"\n→ {call.name}({call.arguments})" for call in turn.calls))
    text = "\n\n".join(said)
    if len(text) > CHARACTERS:
        text = f"{text[:CHARACTERS]}… ({len(text) - CHARACTERS:,} characters more)"
    scored = [losses.number(judged.score), losses.number(judged.standard_error)] if judged else [None, None]
    told = [losses.text(judged.explanation) or None, ", ".join(judged.flags) or None] if judged else [None, None]
    return [member.status, losses.number(member.reward), *scored, cost, *told, text]
