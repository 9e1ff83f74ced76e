"""Metrics of a run: one JSON line per row in `metrics.jsonl`, and the same at a tracker, where the run has one."""

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from gavel.base.errors import GavelError
from gavel.base.files import write_atomically
from gavel.base.text import counted
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory_store import write_whole
from gavel.trainer.runs.trackers import Tracker, TrackerName

logger = logging.getLogger(__name__)
Row = dict[str, Any]

_OWN = ("step", "split", "time", "reward", "judge_score", "failed", "trajectories", "exceptions")
"""Reserved columns: a trajectory's own metric of that name is reported as `metric/<name>`."""
_LISTED = 5
"""Damaged lines that are named."""


class MetricsError(GavelError):
    """The metrics of a run cannot be read or written."""


@dataclass(frozen=True, slots=True)
class WholeRows:
    """The readable rows of a `metrics.jsonl`."""

    rows: list[Row]
    damage: str = ""
    """The number of lost rows by file, and the remedy; empty if all can be read."""


class MetricsLog:
    """Append-only; an incomplete last line (from a kill while writing) is cut off on opening."""

    def __init__(self, path: Path, *, project: str, name: str, tracker: TrackerName | None = None) -> None:
        """`tracker`: where the rows are shown, too. Raises `TrackerError` for one that is not installed."""
        self.path = path
        self._tracker = Tracker(tracker, path.parent, project, name)
        _cut_torn_line(path)

    def log(self, step: int, split: str, values: Mapping[str, float | int | bool | str]) -> None:
        """Appends `{**values, "step", "split", "time"}`; a value that is not a finite number becomes null.

        Raises `MetricsError` when the row cannot be written; the file is then as before.
        """
        finite = {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in values.items()}
        row: Row = finite | {"step": step, "split": split, "time": round(time.time(), 3)}
        try:
            with self.path.open("ab", buffering=0) as stream:
                write_whole(stream.fileno(), f"{json.dumps(row)}\n".encode(), stream.tell())
        except OSError as error:
            raise MetricsError(
                f"{self.path} cannot be written: {error}", "Make room, and run the same command again: it resumes."
            ) from error
        self._tracker.log(step, split, values)

    def rows(self, split: str | None = None) -> list[Row]:
        """The rows so far, of one split or of all. Raises `MetricsError`."""
        read = whole_rows(self.path)
        if read.damage:
            raise MetricsError(read.damage, "Or start over with --fresh.")
        return [row for row in read.rows if split in (None, row["split"])]

    def drop_after(self, step: int) -> None:
        """Drops the rows of later steps, which are about to be repeated."""
        rows = self.rows()
        kept = [row for row in rows if row["step"] <= step]
        if len(kept) < len(rows):
            write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in kept))

    def log_groups(self, step: int, split: str, groups: Sequence[TrajectoryGroup]) -> None:
        """Shows groups at the tracker, where there is one; they are not written here."""
        if groups:
            self._tracker.log_groups(step, split, groups)

    def close(self) -> None:
        """Shows the run's report at the tracker, and ends the run there."""
        self._tracker.finish(self.path.with_name("report.html"))


def whole_rows(path: Path) -> WholeRows:
    """The rows of a `metrics.jsonl` that somebody may be writing; none where there is no file.

    A torn last line is passed over in silence, other damaged lines are counted. Raises `MetricsError` for a file that
    cannot be read at all.
    """
    if not path.exists():
        return WholeRows([])
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise MetricsError(f"{path} cannot be read: {error}", "Look at the file.") from error
    rows, lost = list[Row](), list[int]()
    for number, line in enumerate(lines, 1):
        if (row := _read_row(line)) is not None:
            rows.append(row)
        elif number < len(lines):
            lost.append(number)
    if not lost:
        return WholeRows(rows)
    listed = ", ".join(map(str, lost[:_LISTED])) + (", …" if len(lost) > _LISTED else "")
    return WholeRows(
        rows,
        f"{counted(len(lost), 'row')} of {path} cannot be read (line{'s' if len(lost) > 1 else ''} {listed}): "
        "what they told is missing here. Restore the file from a copy, if there is one.",
    )


def read_rows(path: Path) -> list[Row]:
    """The rows of `whole_rows`; a warning tells of those that cannot be read."""
    read = whole_rows(path)
    if read.damage:
        logger.warning("%s", read.damage)
    return read.rows


def trajectory_means(groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
    """Means over all trajectories (reward and judge_score: of the scored ones), the share
    that failed, and counts, also of rewards that are not finite."""
    groups = list(groups)
    values: dict[str, list[float]] = {}
    trajectories = [trajectory for group in groups for trajectory in group]
    for trajectory in trajectories:
        for name, value in trajectory.metrics.items():
            values.setdefault(f"metric/{name}" if name in _OWN else name, []).append(float(value))
        if trajectory.reward is not None and math.isfinite(trajectory.reward):  # any other is left out of training
            values.setdefault("reward", []).append(trajectory.reward)
        if trajectory.judgement is not None and trajectory.judgement.score is not None:
            values.setdefault("judge_score", []).append(trajectory.judgement.score)
        values.setdefault("failed", []).append(float(trajectory.status == "failed"))
    exceptions = sum(len(group.exceptions) for group in groups)
    means = {name: fmean(numbers) for name, numbers in values.items()}
    if odd := sum(each.reward is not None and not math.isfinite(each.reward) for each in trajectories):
        means["left_out/reward_not_finite"] = float(odd)  # as a training step counts them
    return means | {"trajectories": float(len(trajectories)), "exceptions": float(exceptions)}


def judge_totals(groups: Iterable[TrajectoryGroup]) -> dict[str, float]:
    """Judge calls, tokens of prompts and replies, the groups whose orders contradict each other (where several orders
    tell members apart), and the cost in US dollars if it is known for all groups."""
    judgements = [group.judgement for group in groups if group.judgement is not None]
    if not judgements:
        return {}
    names = ("calls", "cached_calls", "prompt_tokens", "completion_tokens")
    totals: dict[str, float] = {f"judge/{name}": sum(getattr(each, name) for each in judgements) for name in names}
    if known_agreements := [each.order_agreement for each in judgements if each.order_agreement is not None]:
        totals["judge/opposed_groups"] = sum(agreement <= 0 for agreement in known_agreements)
    costs = [each.cost_usd for each in judgements if each.calls]
    return totals if None in costs else totals | {"judge/cost_usd": sum(cost for cost in costs if cost is not None)}


def _read_row(line: bytes) -> Row | None:
    """None for a line that `MetricsLog.log` did not write."""
    with contextlib.suppress(ValueError, RecursionError):
        match json.loads(line):
            case {"step": int(), "split": str()} as row:
                return row
            case _:
                pass
    return None


def _cut_torn_line(path: Path) -> None:
    content = path.read_bytes() if path.is_file() else b""
    if (whole := content.rfind(b"\n") + 1) < len(content):
        os.truncate(path, whole)
