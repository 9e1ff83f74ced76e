"""Gymnasium environments with states that can be described in words, and with few or textual actions.

    gymnasium:FrozenLake-v1?is_slippery=false&tasks=200
    gymnasium:Taxi-v4?actions=south,north,east,west,pickup,dropoff

    scenario = gymnasium_scenario(MyEnv, name="shop", describe=lambda observation, info: …)     # one's own class

The agent calls `act`. A Discrete action is one of its names, a Text action a text within the space. The sum of rewards
is `environment_reward`, and an episode succeeds from a threshold on: for comparison only.
"""

import functools
import inspect
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from pydantic import Field

from gavel.llm.types import Message
from gavel.prompts import render
from gavel.scenarios.environment import ToolWorld, WorldError
from gavel.scenarios.episode import Episode
from gavel.scenarios.packaged_world import OwnChance, SeedOptions, installed, parsed
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task
from gavel.scenarios.tool_results import text_of_result
from gavel.scenarios.tools import ToolResult, described, no_such_tool, tool_error
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
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


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
    given = options.actions.split(",") if options.actions else None
    try:
        spec = package.spec(name)
    except Exception as error:
        raise ScenarioError(
            f"Gymnasium has no environment {name!r}: {described(error)}",
            "Name it as gymnasium.make does; one of another package as PACKAGE:ID.",
        ) from error
    rendered = {} if "render_mode" in arguments else _choose_rendering(package, name, arguments)
    threshold = options.success if options.success is not None else spec.reward_threshold
    return gymnasium_scenario(
        functools.partial(package.make, name, **arguments, **rendered),
        name=f"gymnasium-{family}",
        actions=given or _KNOWN.get(family),
        success=threshold,
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
    chosen = options or Options()
    try:
        with OwnChance(0):
            sample = make()
            space = sample.action_space
            named = actions or _meanings(sample)
            sample.close()
    except Exception as error:
        raise ScenarioError(
            f"the environment {name} cannot be made: {described(error)}", "Make it in Python, and see what it says."
        ) from error
    form = _Actions.of(space, named, name)
    train, held_out = chosen.drawn(functools.partial(_task, name))
    kind = GymnasiumWorld if success is None else ThresholdWorld
    return Scenario(
        name,
        system=render("scenarios/gymnasium_system.j2", called=name, goal=goal).strip(),
        environment=functools.partial(kind, make, form, describe, success),
        tasks=train,
        held_out=held_out,
        max_turns=chosen.turns,
        rubric=render("scenarios/openenv_rubric.j2").strip(),
    )


def _task(name: str, seed: int) -> Task:
    return Task(id=f"{name}-{seed}", user="", data={"seed": seed})


class _Actions:
    """The agent's actions: the tool's schema, and the action for its argument."""

    def __init__(self, schema: Message, space: Any, names: Sequence[str] | None) -> None:
        self.schema: Message = {
            "type": "function",
            "function": {
                "name": "act",
                "description": "Carry out one action in the environment.",
                "parameters": {
                    "type": "object",
                    "properties": {"action": schema},
                    "required": ["action"],
                    "additionalProperties": False,
                },
            },
        }
        self._space = space
        self._names = names

    @classmethod
    def of(cls, space: Any, names: Sequence[str] | None, name: str) -> "_Actions":
        kind = type(space).__name__
        if kind == "Text":
            schema: Message = {"type": "string", "minLength": int(space.min_length), "maxLength": int(space.max_length)}
            return cls(schema, space, None)
        if kind != "Discrete" or not 0 < int(space.n) <= _MOST_ACTIONS:
            raise ScenarioError(
                f"the actions of {name} are {space}, which are neither Text nor Discrete with at most {_MOST_ACTIONS}",
                "Wrap the environment (gymnasium.ActionWrapper) so that its actions are few, or text.",
            )
        count = int(space.n)
        if names is not None and (len(names) != count or len(set(names)) != count):
            raise ScenarioError(
                f"{name} has {count} actions, and {len(names)} names are given: {', '.join(names)}",
                "Give each action a name of its own: actions=left,right",
            )
        enum = list(names) if names is not None else [str(int(space.start) + i) for i in range(count)]
        return cls({"type": "string", "enum": enum}, space, enum)

    def action(self, arguments: str) -> Any:
        """The action for arguments as the agent wrote them. Raises `ValueError` for invalid ones."""
        try:
            given: Any = json.loads(arguments or "{}")
        except RecursionError as error:
            raise ValueError("the arguments are nested too deeply") from error
        if not isinstance(given, dict) or set(cast(Message, given)) != {"action"}:
            raise ValueError('the arguments must be {"action": …}')
        value: Any = cast(Message, given)["action"]
        if self._names is not None:
            if str(value) not in self._names:
                raise ValueError(f"there is no action {value!r}; the actions are {', '.join(self._names)}")
            return int(self._space.start) + self._names.index(str(value))
        if not isinstance(value, str) or not self._space.contains(value):
            raise ValueError(f"{value!r} is no text of the space {self._space}")
        return value


class GymnasiumWorld(ToolWorld):
    """An episode of one seed."""

    def __init__(
        self, make: Callable[[], Any], actions: _Actions, describe: Describe | None, success: float | None
    ) -> None:
        self._make = make
        self._actions = actions
        self._describe = describe
        self._threshold = success
        self._environment: Any = None
        self._sum = self._last = 0.0
        self._is_over = False
        self.schemas = [actions.schema]

    async def reset(self, task: Task, episode: Episode) -> str:
        self._episode = episode
        seed = int(cast(Any, task.data["seed"]))
        self._chance = OwnChance(seed)

        def begin() -> str:
            self._environment = self._make()
            observation, info = self._environment.reset(seed=seed)
            return self._told(observation, info)

        return await self._alone(begin)

    async def call(self, name: str, arguments: str) -> ToolResult:
        if name != "act":
            return no_such_tool(name, ["act"])
        if self._is_over:
            return tool_error("the environment's episode is over")
        try:
            action = self._actions.action(arguments)
        except ValueError as error:
            return tool_error(str(error))

        def step() -> str:
            observation, reward, terminated, truncated, info = self._environment.step(action)
            self._last = float(reward)
            self._sum += self._last
            self._is_over = bool(terminated) or bool(truncated)
            self._episode.trajectory.metrics |= {"raw_reward": self._last, "raw_return": self._sum}
            return self._told(observation, info)

        text = await self._alone(step)
        end = " The episode is over." if self._is_over else ""
        return ToolResult(
            f"{text}\nReward: {self._episode.trajectory.metrics['raw_reward']:g}.{end}", done=self._is_over
        )

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
        value = text_of_result(observation)
        return (
            f"{_COLOURS.sub(_marked, shown).strip()}\nState: {value}" if isinstance(shown, str) else f"State: {value}"
        )

    async def _alone(self, function: Callable[[], Any]) -> Any:
        """Runs a function of the environment in the episode's thread, with its own random state."""

        def work() -> Any:
            with self._chance:
                return function()

        try:
            return await self._episode.plain_calls.run(work)
        except Exception as error:
            raise WorldError(f"the environment failed: {described(error)}") from error


class ThresholdWorld(GymnasiumWorld):
    """A world whose episode succeeds at a min sum of rewards."""

    def success(self, trajectory: Trajectory) -> bool:
        return self._threshold is not None and self._sum >= self._threshold


def _marked(match: re.Match[str]) -> str:
    """Replaces colours, which mark the agent's position in text renderings, by brackets."""
    return "]" if match[0] in ("\x1b[0m", "\x1b[m") else "["


def _choose_rendering(package: Any, name: str, arguments: dict[str, Any]) -> dict[str, str]:
    """The option that makes an environment render its state as text, if it has one."""
    try:
        with OwnChance(0):
            made = package.make(name, **arguments)
    except Exception as error:
        raise ScenarioError(
            f"the environment {name} cannot be made: {described(error)}",
            "Look at its arguments: what is no option is one.",
        ) from error
    for key, parameter in inspect.signature(cast("type[object]", type(made.unwrapped))).parameters.items():
        if isinstance(parameter.default, bool) and isinstance(arguments.get(key), str):  # any text would be true
            raise ScenarioError(
                f"{key}={arguments[key]} is neither true nor false", f"Write {key}=true or {key}=false."
            )
    return {"render_mode": "ansi"} if "ansi" in (made.metadata.get("render_modes") or ()) else {}


def _meanings(environment: Any) -> Sequence[str] | None:
    """Action names that an environment reports itself, as Atari's do."""
    tell = getattr(environment.unwrapped, "get_action_meanings", None)
    return [str(name) for name in tell()] if inspect.ismethod(tell) else None
