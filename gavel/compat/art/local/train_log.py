"""What `model.log` stores beside training, so that nothing is stored twice, and nothing is lost.

Training stores its trajectories and a row of metrics itself. ART's scripts log the same groups before or after it:
before, they are kept where the next step puts its own, which replaces them; after, they are known and left out.
"""

from collections.abc import Iterable, Mapping

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.training_run import TrainableSpec
from gavel.trainer.model import Model


class TrainLog:
    """The log of one registered model."""

    def __init__(self, model: Model, backend: LocalBackend) -> None:
        self._model = model
        self._backend = backend
        self._logged: list[TrajectoryGroup] = []
        """Logged for training since the last step."""
        self._trained: list[TrajectoryGroup] = []
        """Of the last step; a reference to each, so that their ids stay theirs."""
        self._metrics: Mapping[str, float] = {}
        """Of the last step."""

    def trained(self, groups: list[TrajectoryGroup], metrics: Mapping[str, float], step: int) -> None:
        """After a step: stores again what was logged for it and not trained."""
        stored = _turns(groups)
        left = [part for group in self._logged if (part := _without(group, stored))]
        if left:
            self._backend.store(self._model, left, "train", step)
        self._logged, self._trained, self._metrics = [], groups, metrics

    async def log(
        self, groups: list[TrajectoryGroup] | None, split: str, metrics: Mapping[str, float], step: int | None
    ) -> None:
        """Stores groups and metrics; those of the training split as the module says."""
        if split != "train" or not isinstance(self._model, TrainableSpec):
            if groups is not None:
                await self._backend.log(self._model, groups, split, metrics=metrics)
            elif metrics:
                self._backend.record(self._model, metrics, split)
            return
        new = {name: value for name, value in metrics.items() if self._metrics.get(name) != value}
        if new:
            self._backend.record(self._model, new, split)
        stored = _turns([*self._trained, *self._logged])
        left = [part for group in groups or () if (part := _without(group, stored))]
        if left:
            self._backend.store(self._model, left, split, self._backend.step(self._model) + 1)
            self._logged += left


def _turns(groups: Iterable[TrajectoryGroup]) -> set[int]:
    return {_turn(member) for group in groups for member in group}


def _turn(member: Trajectory) -> int:
    """What a trajectory has in common with its judged copy: the last turn, which no other one shares."""
    return id(member.messages_and_choices[-1] if member.messages_and_choices else member)


def _without(group: TrajectoryGroup, stored: set[int]) -> TrajectoryGroup | None:
    """The group's members that are not stored; None when there is none."""
    left = [member for member in group if _turn(member) not in stored]
    return group.model_copy(update={"trajectories": left}) if left else None
