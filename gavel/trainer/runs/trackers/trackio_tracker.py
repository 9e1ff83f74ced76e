"""trackio: metrics, a table and a trace for each member of a step's groups, and the report, in files of this machine.

`trackio show --project PROJECT` shows them; TRACKIO_DIR says where they lie, TRACKIO_SPACE_ID and TRACKIO_SERVER_URL
send them elsewhere, as trackio itself reads them.
"""

import contextlib
import contextvars
import importlib
import io
import logging
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from gavel.scenarios.group import TrajectoryGroup
from gavel.trainer.runs.trackers.group_table import COLUMNS, messages, rows, scores, shown_members
from gavel.trainer.runs.trackers.tracker import Tracked, TrackerError, Values

logger = logging.getLogger(__name__)


class TrackioTracker:
    """The run at trackio."""

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
        traces = [
            self._trackio.Trace(
                messages(each.trajectory),
                metadata={"split": split, "group": each.group, "member": each.member, **scores(each)},
            )
            for each in shown_members(groups)
        ]
        self._run.log({f"{split}/groups": table, f"{split}/traces": traces}, step=step)

    def log_report(self, page: Path) -> None:
        self._run.log({"report": self._trackio.Html(str(page))})

    def finish(self) -> None:
        with _quietly():
            self._run.finish()


@contextlib.contextmanager
def _quietly() -> Generator[None]:
    """What trackio prints goes to the log."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        yield
    for line in printed.getvalue().splitlines():
        logger.info("%s", line)
