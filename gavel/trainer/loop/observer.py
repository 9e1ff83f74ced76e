"""What a training loop tells whoever watches it, such as the display of a command."""

from dataclasses import dataclass

from gavel.scenarios.group import TrajectoryGroup
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.loop.evaluation import Evaluation
from gavel.trainer.loop.judge_alarms import JudgeAlarm


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did and how long its parts took, in seconds; parts overlap, so their sum may exceed `whole`."""

    result: TrainResult
    groups: list[TrajectoryGroup]
    rollout: float
    """While at least one rollout ran, whichever step it is for."""
    judge: float
    """While at least one group was being judged; part of it may fall into `rollout`."""
    train: float
    whole: float


class Observer:
    """Is called by a running loop; the methods do nothing unless overridden."""

    def doing(self, what: str) -> None:
        """The loop starts `what` and waits for it."""

    def advanced(self, done: int, total: int) -> None:
        """So many of the parts of what it waits for are done."""

    def stepped(self, report: StepReport) -> None:
        """A step is done and saved."""

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        """A point of the learning curve is known."""

    def alarmed(self, step: int, alarm: JudgeAlarm) -> None:
        """The judge's scores are to be distrusted, for a reason that the run has not had before."""
