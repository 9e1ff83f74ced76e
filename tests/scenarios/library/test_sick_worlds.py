"""64 episodes at once over every shipped world, every fourth of which is sick: it costs its own episode alone."""

import asyncio
import contextlib
import copy
import functools
import inspect
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gavel.scenarios.environment import is_plain, tools_of
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario, find_scenario, shipped_scenarios
from gavel.scenarios.scripted_agent import Player, Turns, played_by, players_of
from gavel.scenarios.shared_state import changed_state, shared_state
from gavel.scenarios.simulated_user import SimulatedUser
from gavel.scenarios.task import Task
from gavel.scenarios.tools import Toolbox
from gavel.scenarios.trajectory import Trajectory
from tests.limits import HANG_SECONDS
from tests.scenarios.library.test_conformance import played

EPISODES = 64
NAMES = [name for name in shipped_scenarios() if name not in ("writing", "one_sentence")]
"""In the others there is nothing but the task's words."""
SICKNESSES = ("hangs", "raises", "leaks", "lies")
OWN = ("reset", "observe", "success")
SECONDS = 0.5
"""That a call of a sick world may take; those of the others have the scenario's limit."""


class Sick:
    """Makes functions of one world fail: all those that agents reach, or one of the world's own."""

    def __init__(self, how: str, release: threading.Event) -> None:
        self._how = how
        self._release = release
        self.kept: list[object] = []
        self.met = False
        """Whether its episode came to what fails."""

    def function(self, function: Callable[..., Any], hangs: bool = True) -> Callable[..., Any]:
        """`hangs`: it may, since it has a thread of its own."""

        async def later(*given: Any, **named: Any) -> Any:
            self.met = True
            if self._how == "hangs":
                await asyncio.Event().wait()
            self._fail(given)
            return object() if self._how == "lies" else await function(*given, **named)

        def now(*given: Any, **named: Any) -> Any:
            self.met = True
            if self._how == "hangs" and hangs:
                self._release.wait(HANG_SECONDS)
            self._fail(given)
            return object() if self._how == "lies" else function(*given, **named)

        return functools.wraps(function)(later if inspect.iscoroutinefunction(function) else now)

    def _fail(self, given: object) -> None:
        if self._how == "leaks":
            self.kept.append(given)
            random.seed(len(self.kept))
        elif self._how != "lies":
            raise OSError("out of order")

    def scenario(self, scenario: Scenario, where: str) -> Scenario:
        """A copy with a world that is sick in one of its own methods, or in all that agents reach (`act`)."""
        sick = copy.copy(scenario)
        sick.call_seconds = sick.max_seconds = SECONDS
        if scenario.rollout is not None:
            sick.rollout = self.function(scenario.rollout)
        elif scenario.user is not None:
            sick.user = SimulatedUser(self.function(_facts_of(scenario)), persona="", goal="")
        elif scenario.environment is None:
            sick.toolbox = Toolbox([self.function(tool.function) for tool in scenario.toolbox])
        else:
            kind: Any = scenario.environment
            acting = [tool.name for tool in tools_of(kind)] or ["observe"]
            names = acting if where == "act" or not hasattr(kind, where) else [where]
            own = {name: self.function(getattr(kind, name), is_plain(kind)) for name in names}
            sick.environment = type(kind.__name__, (kind,), own | {"KEPT": self.kept})
            if self._how == "leaks":
                module: Any = sys.modules[kind.__module__]
                kind.KEPT = module.KEPT = self.kept
        return sick


def _facts_of(scenario: Scenario) -> Any:
    return sys.modules[f"gavel.scenarios.library.{scenario.name}"].answer_by_facts


class Doors:
    """Counts the worlds of a scenario that are made and closed."""

    def __init__(self) -> None:
        self.made: Counter[int] = Counter()
        self.closed: Counter[int] = Counter()

    def watch(self, scenario: Scenario, number: int) -> Scenario:
        kind = scenario.environment
        if not isinstance(kind, type):
            return scenario
        doors = self

        class Watched(kind):  # type: ignore[misc,valid-type]
            def __init__(self) -> None:
                super().__init__()
                doors.made[number] += 1

            def close(self) -> Any:
                doors.closed[number] += 1
                return super().close() if hasattr(super(), "close") else None

        watched = copy.copy(scenario)
        watched.environment = Watched
        return watched


def unmoved(player: Player) -> Player:
    """Says nothing more where it cannot make sense of what it is told."""

    def play(task: Task, opening: str, dice: random.Random) -> Turns:
        with contextlib.suppress(Exception):
            yield from player(task, opening, dice)

    return play


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set at the end, so that no thread outlives the test."""
    monkeypatch.delenv("GAVEL_USER_MODEL", raising=False)
    monkeypatch.delenv("GAVEL_OPPONENT", raising=False)
    event = threading.Event()
    chance = random.getstate()
    yield event
    event.set()
    random.setstate(chance)


@pytest.mark.parametrize("name", NAMES)
async def test_a_sick_world_costs_its_own_episode_alone(name: str, release: threading.Event):
    scenario, players = find_scenario(name), list(players_of(name).values())
    tasks = scenario.sample("held_out", EPISODES // 4, seed=8)  # each is played by several, sick ones among them
    kind: Any = scenario.environment
    doors, sick = Doors(), dict[int, Sick]()

    async def play(number: int, world: Scenario) -> Trajectory:
        task = tasks[(number % 4 + number // 16 * 4) % len(tasks)]
        player = unmoved(players[number // 4 % len(players)])
        return await rollout(played_by(player, task), world, task, seed=number)

    def sick_world(number: int) -> Scenario:
        sick[number] = Sick(SICKNESSES[number // 4 % 4], release)
        return sick[number].scenario(scenario, (*OWN, "act")[number // 16])

    healthy = [number for number in range(EPISODES) if number % 4]
    alone = await asyncio.gather(*(play(number, scenario) for number in healthy))
    before = shared_state(scenario)
    try:
        worlds = [scenario if number % 4 else sick_world(number) for number in range(EPISODES)]
        worlds = [doors.watch(world, number) for number, world in enumerate(worlds)]
        together = await asyncio.gather(*map(play, range(EPISODES), worlds))
        release.set()
        async with asyncio.timeout(HANG_SECONDS):  # those that hung are closed in threads of their own
            while sum(doors.closed.values()) < sum(doors.made.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        leaked = changed_state(before, scenario)
    finally:
        for place in (kind, sys.modules.get(getattr(kind, "__module__", ""))):
            if place is not None and hasattr(place, "KEPT"):
                delattr(place, "KEPT")
    assert [played(together[number]) for number in healthy] == [played(each) for each in alone]
    if kind is not None:
        assert any(each.startswith("KEPT of the class") for each in leaked)
        assert sum(doors.made.values()) == EPISODES
        assert doors.closed == doors.made
    assert {SICKNESSES[number // 4 % 4] for number, each in sick.items() if each.met} == set(SICKNESSES)
    for number, each in sick.items():
        episode, how = together[number], SICKNESSES[number // 4 % 4]
        assert Trajectory.model_validate_json(episode.model_dump_json()).status == episode.status
        if each.met and how in ("hangs", "raises"):
            assert episode.status in ("failed", "truncated") or episode.metrics["tool_errors"]
