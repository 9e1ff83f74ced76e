"""The messages of a trajectory, as earlier versions of ART gave them."""

from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.trajectory import Trajectory


def get_trajectory_messages(trajectory: Trajectory | dict[str, Any]) -> list[Message]:
    """The conversation as message dicts."""
    known = trajectory if isinstance(trajectory, Trajectory) else Trajectory.model_validate(trajectory)
    return known.messages()
