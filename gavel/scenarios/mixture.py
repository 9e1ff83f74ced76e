"""Several scenarios in one run, with each one's number of groups per step.

    Mixture([retail, airline])                                        equal shares
    Mixture([retail, airline], weights={"retail": 3, "airline": 1})   three groups in four are of the first
    Mixture([retail, airline], weights={"airline": {20: 1}})          a curriculum: the second begins at step 20

A group is always of one task, so members of different scenarios are never compared. Shares are systematic: in a step of
n groups a scenario of share p has floor(np) or ceil(np) of them, and np on average. The plan of a step depends on the
seed and the step alone.
"""

import bisect
import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from gavel.base.fields import problem
from gavel.scenarios.scenario import Scenario, ScenarioError, Split, find_scenario
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.task import Task

SEPARATOR = "+"
_REFERENCE = re.compile(r"\w+|\w+:(?!//).+|[^:?]+\.py(:\w*)?")
"""A name, an address or a file: an operand of a separator."""
Weight = float | Mapping[int, float]
"""A number, or numbers by the step from which they apply; 0 before the first one."""
_Number = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
_WEIGHTS = TypeAdapter(dict[str, _Number | dict[Annotated[int, Field(ge=0, strict=True)], _Number]])


@dataclass(frozen=True, slots=True)
class PlannedTask:
    scenario: Scenario
    task: Task
    repeat: int = 0
    """Number of earlier groups of the step with the same task: a scenario may have fewer tasks than groups."""


class Mixture:
    """Scenarios that one policy is trained on together."""

    def __init__(self, scenarios: Sequence[Scenario | str], weights: Mapping[str, Weight] | None = None) -> None:
        """`weights` by the scenarios' names; default 1. Raises `ScenarioError` for no scenario, a duplicate name, a
        weight without a scenario, a weight that is no number from 0, and a step at which all are 0."""
        if isinstance(scenarios, str | Scenario):
            raise ScenarioError(
                "a mixture takes a list of scenarios", "Pass gavel.Mixture([scenario, …], weights={…})."
            )
        self.scenarios = tuple(each if isinstance(each, Scenario) else find_scenario(each) for each in scenarios)
        names = [each.name for each in self.scenarios]
        if not names:
            raise ScenarioError("a mixture needs a scenario", "Pass gavel.Mixture([scenario, …]).")
        if doubled := next((name for name in names if names.count(name) > 1), None):
            raise ScenarioError(
                f"two scenarios of the mixture are called {doubled}: their figures could not be told apart",
                "Name each scenario once, and give two different ones different names.",
            )
        self.name = SEPARATOR.join(names)
        try:
            given = _WEIGHTS.validate_python(weights or {})
        except ValidationError as error:
            raise ScenarioError(
                f"the weights of a mixture are no weights: {problem(error)}",
                f'Use numbers from 0, or numbers by steps from 0: weights={{"{names[0]}": 2}}.',
            ) from error
        if unknown := next((name for name in given if name not in names), None):
            raise ScenarioError(
                f"{unknown!r} has a weight, and is none of the scenarios", f"There are: {', '.join(names)}."
            )
        wanted = {name: given.get(name, 1.0) for name in names}
        self.weights = {name: each if isinstance(each, dict) else {0: each} for name, each in wanted.items()}
        steps = {0, *(step for by_step in self.weights.values() for step in by_step)}
        if empty := [step for step in sorted(steps) if not any(self.weights_at(step).values())]:
            raise ScenarioError(
                f"at step {empty[0]} every scenario of the mixture has the weight 0",
                "Give one of them a weight above 0 from step 0 on.",
            )

    @classmethod
    def of(cls, scenario: "Scenario | Mixture") -> "Mixture":
        """The mixture itself, or a mixture of a single scenario."""
        return scenario if isinstance(scenario, Mixture) else cls([scenario])

    def __iter__(self) -> Iterator[Scenario]:
        return iter(self.scenarios)

    def __len__(self) -> int:
        return len(self.scenarios)

    @property
    def rubric(self) -> str | None:
        """None: each scenario has its own."""
        return None

    def tasks(self, split: Split = "train") -> list[Task]:
        return [task for scenario in self.scenarios for task in scenario.tasks(split)]

    def weights_at(self, step: int) -> dict[str, float]:
        """Each scenario's weight at a step; they need not sum to 1."""
        latest = {name: max((at for at in each if at <= step), default=None) for name, each in self.weights.items()}
        return {name: 0.0 if at is None else self.weights[name][at] for name, at in latest.items()}

    def plan(self, count: int, *, seed: int, step: int) -> list[PlannedTask]:
        """The tasks of the `count` groups of a step; a single scenario gives at most as many as it has."""
        if len(self.scenarios) == 1:
            (scenario,) = self.scenarios
            return [PlannedTask(scenario, task) for task in scenario.sample("train", count, seed=seed, step=step)]
        chooser = random.Random(f"{self.name}/mixture/{seed}/{step}")
        ends = [*itertools.accumulate(self.weights_at(step).values())]
        offset = chooser.random()
        planned: list[PlannedTask] = []
        drawn = Counter(bisect.bisect_right(ends, (offset + k) / count * ends[-1]) for k in range(count))
        for number, scenario in enumerate(self.scenarios):
            left, repeat = drawn[number], 0
            while left:
                again = seed if not repeat else seed_of(seed, "repeat", repeat)
                tasks = scenario.sample("train", left, seed=again, step=step)
                planned += [PlannedTask(scenario, task, repeat) for task in tasks]
                left, repeat = left - len(tasks), repeat + 1
        chooser.shuffle(planned)
        return planned

    def dump(self) -> dict[str, dict[str, float]]:
        """The weights as JSON, by scenario and step."""
        return {name: {str(step): weight for step, weight in each.items()} for name, each in self.weights.items()}


def scenario_references(reference: str) -> list[str]:
    """The scenarios that `a+b` names.

    A + is no separator if one of its sides names no scenario (agentgym:maze+http://…, a folder called a+b), or within
    the path of an existing file.
    """
    found: list[str] = []
    for part in reference.split(SEPARATOR):
        if found and not _is_between(found[-1].strip(), part.strip()):
            found[-1] += SEPARATOR + part
        else:
            found.append(part)
    return found


def _is_between(before: str, after: str) -> bool:
    if not _REFERENCE.fullmatch(before) or not _REFERENCE.fullmatch(after):
        return False
    end = re.split("[?=:]", after)[0]
    path = Path(re.split("[?=:]", before)[-1] + SEPARATOR + end)  # in which the + would stand
    return not (path.exists() or ("/" in end and path.parent.exists()))


def read_weights(weights: Mapping[str, float]) -> dict[str, Weight]:
    """Parses weights as in settings: `airline` is the weight of a scenario, `20:airline` that from step 20 on."""
    found: dict[str, dict[int, float]] = {}
    for key, weight in weights.items():
        step, colon, name = key.partition(":")
        at, name = (int(step), name) if colon and step.isdecimal() else (0, key)
        found.setdefault(name, {})[at] = weight
    return {name: dict(sorted(by_step.items())) for name, by_step in found.items()}
