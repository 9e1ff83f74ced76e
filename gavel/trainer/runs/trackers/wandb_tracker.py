"""Weights & Biases: metrics under `<split>/<name>`, a table `<split>/groups` for each step, and the report as a page.

Offline (`WANDB_MODE=offline`) all of it lies in the run directory, for `wandb sync`.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gavel.scenarios.group import TrajectoryGroup
from gavel.trainer.runs.trackers.group_table import COLUMNS, rows
from gavel.trainer.runs.trackers.tracker import Tracked, TrackerError, Values


class WandbTracker:
    """The run at W&B."""

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
