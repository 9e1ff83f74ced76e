"""Environments on openenv's own server: `python real_server.py guess|calculator PORT SESSIONS`."""

import random
import sys
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    """Guess the number."""

    number: int


class Hint(Observation):
    hint: str = ""


class GuessEnvironment(Environment[Guess, Hint, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._goal = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **rest: Any) -> Hint:
        self._goal = random.Random(seed).randint(1, 9)
        self._state = State(episode_id=episode_id)
        return Hint(hint="Guess a number from 1 to 9.")

    def step(self, action: Guess, timeout_s: float | None = None, **rest: Any) -> Hint:
        self._state.step_count += 1
        if action.number == 99:
            raise ValueError("out of range")
        if action.number == self._goal:
            return Hint(hint="right", done=True, reward=1.0)
        return Hint(hint="higher" if action.number < self._goal else "lower", reward=-0.1)

    @property
    def state(self) -> State:
        return self._state


class Calculator(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        tools = FastMCP("calculator")

        @tools.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        @tools.tool
        def fail() -> str:
            """Fail."""
            raise RuntimeError("the tape is torn")

        super().__init__(tools)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **rest: Any) -> Observation:
        return Observation(metadata={"message": "ready"})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **rest: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State()


if __name__ == "__main__":
    kind, port, sessions = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if kind == "guess":
        app = create_app(GuessEnvironment, Guess, Hint, env_name="guess", max_concurrent_envs=sessions)
    else:
        app = create_app(Calculator, CallToolAction, CallToolObservation, env_name=kind, max_concurrent_envs=sessions)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
