"""What a reward hook is given for members that the judge did not score: no number, or an error.

    rewards_of(judged, "member")    [0.9, None, 0.2]      only that member has no reward
    rewards_of(judged, "group")     [None, None, None]    no member has one, so that nothing is compared with nothing
    rewards_of(judged, "raise")     JudgeError

Trainers that add several rewards up count a missing one as nothing, which is a penalty beside members that have one:
"group" keeps a group comparable whatever is added to it.
"""

from typing import Literal, TypeVar, get_args

from gavel.judge.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup

Unscored = Literal["group", "member", "raise"]
_Choice = TypeVar("_Choice", bound=str)


def checked(unscored: _Choice, choices: object = Unscored) -> _Choice:
    """The choice that was made. Raises `JudgeError` for one that is not in `choices`, a Literal."""
    if unscored not in get_args(choices):
        raise JudgeError(
            f"there is no unscored={unscored!r} here.", f"Say one of: {', '.join(map(repr, get_args(choices)))}."
        )
    return unscored


def rewards_of(judged: TrajectoryGroup, unscored: Unscored) -> list[float | None]:
    """The rewards of a judged group in its order.

    A group whose members are all alike has none, in each case: there is nothing to compare, and nothing has failed.
    Raises `JudgeError` for an unscored member when `unscored` is "raise".
    """
    rewards = [trajectory.reward for trajectory in judged]
    missing = [number for number, reward in enumerate(rewards) if reward is None]
    whole = judged.judgement
    if not missing or (whole and whole.status == "degenerate"):
        return rewards
    if unscored == "raise":
        raise JudgeError(
            f"the judge scored {len(rewards) - len(missing)} of {len(rewards)} members of a group: {reason(judged)}.",
            'Mend what it says, or go on without them: unscored="group" or "member".',
        )
    return [None] * len(rewards) if unscored == "group" else rewards


def reason(judged: TrajectoryGroup) -> str:
    """Why the first member without a score has none."""
    found = (t.judgement.reason for t in judged if t.reward is None and t.judgement and t.judgement.reason)
    return next(iter(found), (judged.judgement and judged.judgement.reason) or "no reason was given")
