"""The reward of a trajectory: the weighted sum of named rewards, by default the judge's score alone.

    parts = {"judge": 0.75, "hand": 0.2}
    weighted_reward(parts, {"judge": 1.0, "hand": 0.5})      # 0.85
    weighted_reward({"judge": None}, {"judge": 1.0})          # None: not scored, which is never 0

A reward with weight 0 is not computed; without a weight for `judge` the judge is not called.
"""

from collections.abc import Mapping

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import RewardName
from gavel.trainer.loop.evaluation import call_measure
from gavel.trainer.loop.watchdog import LoopError

Weights = Mapping[RewardName, float]
Parts = Mapping[RewardName, float | None]
"""The named rewards of one trajectory; None where there is no score."""


def weighted_reward(parts: Parts, weights: Weights) -> float | None:
    """The sum of weight times reward over the rewards with a weight; None when one of these is None."""
    total = 0.0
    for name, weight in weights.items():
        if not weight:
            continue
        value = parts[name]
        if value is None:
            return None
        total += weight * value
    return total


def needs_judge(weights: Weights) -> bool:
    return bool(weights.get("judge"))


def check_rewards(scenario: Scenario, weights: Weights) -> None:
    """Raises `LoopError` when the scenario lacks a function that a weighted reward calls."""
    missing: dict[RewardName, str] = {}
    if scenario.hand_reward is None:
        missing["hand"] = "hand_reward"
    if scenario.success is None:
        missing["success"] = "success"
    for name, argument in missing.items():
        if weights.get(name):
            raise LoopError(
                f"the reward {name!r} needs {argument}, which the scenario {scenario.name} does not have",
                f"Pass {argument}=… to its gavel.Scenario, or take {name!r} out of the weights of the reward.",
            )


def programmed_parts(scenario: Scenario, trajectory: Trajectory, weights: Weights) -> dict[RewardName, float | None]:
    """The weighted rewards that are no judge's. A failed rollout has no score: they are None.

    Raises `ScenarioError` when one of the scenario's functions fails.
    """
    parts: dict[RewardName, float | None] = {}
    scored = trajectory.status != "failed"
    if weights.get("hand") and scenario.hand_reward is not None:
        parts["hand"] = call_measure(scenario, "hand_reward", scenario.hand_reward, trajectory) if scored else None
    if weights.get("success") and scenario.success is not None:
        succeeded = scored and call_measure(scenario, "success", scenario.success, trajectory) != 0
        parts["success"] = float(succeeded) if scored else None
    if weights.get("constant"):
        parts["constant"] = 1.0 if scored else None
    return parts


def set_rewards(group: TrajectoryGroup, programmed: list[dict[RewardName, float | None]], weights: Weights) -> None:
    """Sets each member's reward from its programmed parts and, where that has a weight, the judge's score.

    The parts are kept as the metrics `reward/<name>`, unless the judge's is the only one.
    """
    for trajectory, parts in zip(group.trajectories, programmed, strict=True):
        known: dict[RewardName, float | None] = {"judge": trajectory.reward} if needs_judge(weights) else {}
        known |= parts
        trajectory.reward = weighted_reward(known, weights)
        if known.keys() != {"judge"}:
            trajectory.metrics |= {f"reward/{name}": value for name, value in known.items() if value is not None}
