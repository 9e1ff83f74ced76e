"""Gymnasium environments with states that can be described in words, and with few or textual actions.

    gymnasium:FrozenLake-v1?is_slippery=false&tasks=200
    gymnasium:Taxi-v4?actions=south,north,east,west,pickup,dropoff

    scenario = gymnasium_scenario(MyEnv, name="shop", describe=lambda observation, info: …)     # one's own class

The agent calls `act`. A Discrete action is one of its names, a Text action a text within the space. The sum of rewards
is `environment_reward`, and an episode succeeds from a threshold on: for comparison only.
"""

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from gavel.prompts import render
from gavel.scenarios.environment import ToolWorld, WorldError
from gavel.scenarios.episode import Episode
from gavel.scenarios.packaged_world import OwnChance, SeedOptions, installed, parsed
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task
from gavel.scenarios.tool_results import text_of_result
from gavel.scenarios.tools import Toolbox, ToolResult, described, tool_error
from gavel.scenarios.trajectory import Trajectory

Describe = Callable[[Any, dict[str, Any]], str]
"""Describes an observation and its info to the agent."""
_MOST_ACTIONS = 200
_KNOWN = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
}
"""Meanings of the numbers in Gymnasium's own text worlds, from its documentation."""


class Options(SeedOptions):
    actions: str | None = None
    """Names of a Discrete space's actions, separated by commas."""
    success: float | None = None
    """Min sum of rewards of a success; by default the environment's own threshold."""
    turns: int = Field(default=50, ge=1)


def scenario_at(address: str) -> Scenario:
    """The scenario of `gymnasium:ID?…`. Raises `ScenarioError`."""
    name, options, arguments = parsed("gymnasium", address, Options)
    package: Any = installed("gymnasium", "gymnasium", f"gymnasium:{name}")
    family = name.rpartition("/")[2].partition("-v")[0]
    try:
        spec = package.spec(name)
    except Exception as error:
        raise ScenarioError(
            f"Gymnasium has no environment {name!r}: {described(error)}",
            "Name it as gymnasium.make does; one of another package as PACKAGE:ID.",
        ) from error
    make = functools.partial(package.make, name, **arguments)
    sample = _make_sample(make, name).unwrapped
    for key, parameter in inspect.signature(cast("type[object]", type(sample))).parameters.items():
        if isinstance(parameter.default, bool) and isinstance(arguments.get(key), str):  # any text would be true
            raise ScenarioError(
                f"{key}={arguments[key]} is neither true nor false", f"Write {key}=true or {key}=false."
            )
    if "render_mode" not in arguments and "ansi" in (sample.metadata.get("render_modes") or ()):
        make = functools.partial(make, render_mode="ansi")  # it can render its state as text
    return gymnasium_scenario(
        make,
        name=f"gymnasium-{family}",
        actions=options.actions.split(",") if options.actions else _KNOWN.get(family),
        success=options.success if options.success is not None else spec.reward_threshold,
        options=options,
    )


def gymnasium_scenario(
    make: Callable[[], Any],
    *,
    name: str,
    describe: Describe | None = None,
    actions: Sequence[str] | None = None,
    goal: str = "",
    success: float | None = None,
    options: Options | None = None,
) -> Scenario:
    """A scenario of environments created by `make`, one for each episode.

    `describe` puts an observation into words (by default the text rendering if there is one, else the value); `actions`
    names those of a Discrete space; `goal` is part of the system prompt; `success` is the min sum of rewards of a
    success. Raises `ScenarioError` for an environment that cannot be created, and for one whose actions are neither
    Discrete nor Text.
    """
    chosen, sample = options or Options(), _make_sample(make, name)
    form, names = _form_of(sample.action_space, actions, name)
    sample.close()
    train, held_out = chosen.drawn(lambda seed: Task(id=f"{name}-{seed}", user="", data={"seed": seed}))
    return Scenario(
        name,
        system=render("scenarios/gymnasium_system.j2", called=name, goal=goal).strip(),
        environment=functools.partial(GymnasiumWorld, make, form, names, describe),
        tasks=train,
        held_out=held_out,
        max_turns=chosen.turns,
        rubric=render("scenarios/openenv_rubric.j2").strip(),
        success=None if success is None else lambda trajectory: trajectory.metrics.get("raw_return", 0.0) >= success,
    )


def _make_sample(make: Callable[[], Any], name: str) -> Any:
    try:
        with OwnChance(0):
            return make()
    except Exception as error:
        raise ScenarioError(
            f"the environment {name} cannot be made: {described(error)}",
            "Make it in Python, and see what it says; what is no option is one of its arguments.",
        ) from error


def _form_of(space: Any, names: Sequence[str] | None, name: str) -> tuple[Any, list[str] | None]:
    """The type of the agent's action, and the names of Discrete ones. `name` is the environment's.

    Raises `ScenarioError`.
    """
    kind = type(space).__name__
    if kind == "Text":
        return Annotated[str, Field(min_length=int(space.min_length), max_length=int(space.max_length))], None
    if kind != "Discrete" or not 0 < (count := int(space.n)) <= _MOST_ACTIONS:
        raise ScenarioError(
            f"the actions of {name} are {space}, which are neither Text nor Discrete with at most {_MOST_ACTIONS}",
            "Wrap the environment (gymnasium.ActionWrapper) so that its actions are few, or text.",
        )
    if names is not None and (len(names) != count or len(set(names)) != count):
        raise ScenarioError(
            f"{name} has {count} actions, and {len(names)} names are given: {', '.join(names)}",
            "Give each action a name of its own: actions=left,right",
        )
    told = list(names or (str(int(space.start) + i) for i in range(count)))
    return Literal[tuple(told)], told  # pyright: ignore[reportInvalidTypeForm]


class GymnasiumWorld(ToolWorld):
    """An episode of one seed."""

    def __init__(
        self, make: Callable[[], Any], form: Any, names: Sequence[str] | None, describe: Describe | None
    ) -> None:
        self._action = ""

        async def act(action: Any) -> None:
            """Carry out one action in the environment."""
            self._action = action

        act.__annotations__["action"] = form
        self._tools = Toolbox([act])
        self.schemas = self._tools.schemas
        self._make = make
        self._names = names
        self._describe = describe
        self._environment: Any = None
        self._sum = 0.0
        self._is_over = False

    async def reset(self, task: Task, episode: Episode) -> str:
        seed: Any = task.data["seed"]
        self._episode, self._chance = episode, OwnChance(int(seed))

        def begin() -> str:
            self._environment = self._make()
            return self._told(*self._environment.reset(seed=int(seed)))

        return await self._alone(begin)

    async def call(self, name: str, arguments: str) -> ToolResult:
        if self._is_over:
            return tool_error("the environment's episode is over")
        checked = await self._tools.call(name, arguments)
        if checked.error:
            return checked
        space = self._environment.action_space
        value = self._action if self._names is None else int(space.start) + self._names.index(self._action)
        if not space.contains(value):
            return tool_error(f"{self._action!r} is no text of the space {space}")

        def step() -> str:
            observation, reward, terminated, truncated, info = self._environment.step(value)
            self._sum += float(reward)
            self._is_over = bool(terminated) or bool(truncated)
            self._episode.trajectory.metrics |= {"raw_reward": float(reward), "raw_return": self._sum}
            return f"{self._told(observation, info)}\nReward: {float(reward):g}."

        text = await self._alone(step)
        return ToolResult(f"{text} The episode is over." if self._is_over else text, done=self._is_over)

    async def observe(self, action: str) -> str:
        return render("scenarios/openenv_reminder.j2", tools=["act"]).strip()

    def reward(self, trajectory: Trajectory) -> float:
        return self._sum

    async def close(self) -> None:
        if self._environment is not None:
            await self._alone(self._environment.close)

    def _told(self, observation: Any, info: dict[str, Any]) -> str:
        if self._describe is not None:
            return str(self._describe(observation, info))
        if isinstance(observation, str):
            return observation
        shown = self._environment.render() if self._environment.render_mode == "ansi" else None
        state = f"State: {text_of_result(observation)}"
        if not isinstance(shown, str):
            return state
        # Colours mark the agent's position in text renderings; here brackets do.
        plain = re.sub(r"\x1b\[[0-9;]*m", lambda found: "]" if found[0] in ("\x1b[0m", "\x1b[m") else "[", shown)
        return f"{plain.strip()}\n{state}"

    async def _alone(self, function: Callable[[], Any]) -> Any:
        try:
            return await self._chance.run(self._episode, function)
        except Exception as error:
            raise WorldError(f"the environment failed: {described(error)}") from error
