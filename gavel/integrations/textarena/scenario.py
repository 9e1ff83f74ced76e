"""textarena's games: alone, or against another player.

    textarena:GuessTheNumber-v0?tasks=200&seed=1
    textarena:TicTacToe-v0?opponent=self               # both sides learn, each judged for itself
    textarena:TicTacToe-v0?opponent=openai/gpt-5-mini  # or earlier:20, the policy of 20 steps before

A task is a seed of the game and the policy's side. The reward is the game's (a win 1, a loss -1), for comparison only.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from pydantic import Field

from gavel.prompts import render
from gavel.scenarios.agent import Agent, AgentError
from gavel.scenarios.chat_model import ChatModel
from gavel.scenarios.deadline import in_time
from gavel.scenarios.environment import REWARD, SUCCESS
from gavel.scenarios.episode import Episode
from gavel.scenarios.packaged_world import OwnChance, SeedOptions, installed, parsed
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task
from gavel.scenarios.tools import described
from gavel.scenarios.trajectory import Trajectory

SELF, EARLIER = "self", "earlier:"


class Options(SeedOptions):
    players: int | None = Field(default=None, ge=1)
    """Number of players; by default one if the game can be played alone, else its minimum."""
    opponent: str = SELF
    """Player of the other sides: `self`, `earlier:STEPS`, or a LiteLLM model."""
    turns: int = Field(default=50, ge=1)
    """Max turns of all players together."""


def scenario_at(address: str) -> Scenario:
    """The scenario of `textarena:GAME?…`. Raises `ScenarioError`."""
    name, options, arguments = parsed("textarena", address, Options)
    package: Any = installed("textarena", "textarena", f"textarena:{name}")
    steps = options.opponent.removeprefix(EARLIER)
    if options.opponent.startswith(EARLIER) and not (steps.isdecimal() and int(steps)):
        raise ScenarioError(f"opponent={options.opponent} says no number of steps", "Write opponent=earlier:20.")
    make = partial(package.make, name, **arguments)
    count = _players(make, name, options.players)

    def task(seed: int) -> Task:
        return Task(id=f"{name}-{seed}", user=f"Play {name}.", data={"seed": seed, "side": seed % count})

    async def play(model: ChatModel, task: Task, episode: Episode) -> list[Trajectory]:
        """Plays one game; returns the trajectory of each side that the policy plays and learns from."""
        seed, side = (int(cast(Any, task.data[name])) for name in ("seed", "side"))
        chance = OwnChance(seed)

        async def alone(function: Callable[[], Any]) -> Any:
            try:
                return await in_time(chance.run(episode, function), episode.call_seconds, "the game")
            except Exception as error:
                raise AgentError(f"the game failed: {described(error)}") from error

        def begin() -> Any:
            made = make()
            made.reset(num_players=count, seed=seed)
            return made

        game = await alone(begin)
        opponent = options.opponent
        own = [side] if opponent != SELF else list(range(count))
        by: dict[str, Any] = {"steps_back": int(steps)} if opponent.startswith(EARLIER) else {"model": opponent}
        players = {it: Agent(episode, f"player {it}", **({} if it in own else by)) for it in range(count)}
        seen: dict[int, str] = {}
        over = False
        for _ in range(options.turns):
            player, observation = await alone(lambda: game.get_observation())
            text = observation if isinstance(observation, str) else "\n".join(str(each[1]) for each in observation)
            before, seen[player] = seen.get(player, ""), text  # what a player has seen is not told again
            answer = await players[player].ask(text.removeprefix(before).strip() or "It is your turn.")
            if players[player].trajectory.status == "truncated":
                break
            over, _ = await alone(partial(game.step, answer))
            if over:
                break
        ended: tuple[dict[int, float] | None, dict[int, dict[str, Any]] | None] = await alone(lambda: game.close())
        rewards, info = ended[0] or {}, ended[1] or {}
        for player in own:
            trajectory = players[player].trajectory
            reward = float(rewards.get(player, 0.0)) if over else 0.0
            trajectory.metrics |= {REWARD: reward, SUCCESS: float(bool(over) and reward >= 1)}
            if not over and trajectory.status != "truncated":
                trajectory.status = "truncated"
                trajectory.status_reason = f"{options.turns} turns were used up"
            if over and (told := info.get(player, {}).get("reason")):
                players[player].tell(f"The game is over. {told}")
        return [players[player].trajectory for player in own if players[player].turns]

    train, held_out = options.drawn(task)
    return Scenario(
        f"textarena-{name}",
        rollout=play,
        tasks=train,
        held_out=held_out,
        rubric=render("scenarios/textarena_rubric.j2").strip(),
        success=lambda trajectory: bool(trajectory.metrics.get(SUCCESS, 0.0)),
        hand_reward=lambda trajectory: float(trajectory.metrics.get(REWARD, 0.0)),
    )


def _players(make: Callable[[], Any], name: str, wanted: int | None) -> int:
    """The number of players. Raises `ScenarioError` for an unknown game, or one that cannot start."""
    try:
        game = make()
    except Exception as error:
        raise ScenarioError(
            f"textarena has no game {name!r} to play: {described(error).splitlines()[0]}",
            "Name one as textarena does (GuessTheNumber-v0); some need python -m nltk.downloader words.",
        ) from error
    refused = "no number of players"
    for players in [wanted] if wanted else range(1, 16):
        try:
            with OwnChance(0):
                game.reset(num_players=players, seed=0)
            return players
        except Exception as error:
            refused = described(error)
    raise ScenarioError(f"the game {name} cannot be begun: {refused}", "Name the number of its players: players=3.")
