"""What the agent styles share: the scenario in another style, and the turns of its agent.

The agent's conversation is what a style makes of the episode beneath: its turns are the sampled ones, and are trained.
"""

from collections.abc import Callable, Sequence
from functools import partial
from json import JSONDecodeError
from typing import Any

from openai import OpenAIError, omit
from openai.types.chat.chat_completion import Choice

from gavel.base.errors import GavelError
from gavel.llm.types import Message, text_of
from gavel.scenarios.chat_model import first_choice
from gavel.scenarios.episode import Episode
from gavel.scenarios.scenario import OwnRollout, Scenario
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.stepped_episode import SteppedEpisode, outcome
from gavel.scenarios.tools import described
from gavel.scenarios.trajectory import MessageOrChoice, Trajectory, to_messages


class StyleError(GavelError):
    """The model of an episode gave no turn."""


def restyled(scenario: Scenario, name: str, play: OwnRollout) -> Scenario:
    """The scenario with `play` as its rollout, called `SCENARIO_NAME`; `conclude` leaves what it measures."""
    found: dict[str, Callable[[Trajectory], Any]] = {
        each: partial(_metric, each)
        for each, function in (("success", scenario.success), ("hand_reward", scenario.hand_reward))
        if function is not None
    }
    return Scenario(
        f"{scenario.name}_{name}",
        rollout=play,
        tasks=scenario.tasks("train"),
        held_out=scenario.tasks("held_out"),
        max_turns=scenario.max_turns,
        call_seconds=scenario.call_seconds,
        rubric=scenario.rubric,
        success=found.get("success"),
        hand_reward=found.get("hand_reward"),
        measures={each: partial(_metric, each) for each in scenario.measures},
    )


def _metric(name: str, trajectory: Trajectory) -> float:
    return trajectory.metrics[name]


def conclude(trajectory: Trajectory, scenario: Scenario, beneath: SteppedEpisode) -> Trajectory:
    """The agent's trajectory with status, metrics and measures of the episode beneath."""
    inner = beneath.trajectory
    trajectory.status, trajectory.status_reason = inner.status, inner.status_reason
    trajectory.metrics = {**inner.metrics, **trajectory.metrics, **outcome(scenario, inner)}
    trajectory.logs += inner.logs
    return trajectory


def heard(messages: Sequence[Message]) -> str:
    """What an agent that has no native tools reads of tool results and of the world's or the user's words."""
    said = (
        f"Observation: {text_of(each)}" if each.get("role") == "tool" else text_of(each)
        for each in messages
        if each.get("role") != "assistant"
    )
    return "\n\n".join(filter(None, said))


class Sampler:
    """Samples turns of the episode's policy."""

    def __init__(self, episode: Episode) -> None:
        assert episode.model is not None
        self._episode = episode
        self._client = episode.model.openai_client()
        self._name = episode.model.get_inference_name()

    async def turn(self, items: Sequence[MessageOrChoice], tools: Sequence[Message], *place: int | str) -> Choice:
        """The turn after `items`; `place` tells it from other turns, for its seed. Raises `StyleError`."""
        episode = self._episode
        offered: dict[str, Any] = {"tools": list(tools)} if tools else {}
        seed = None if episode.seed is None else seed_of(episode.seed, "style", *place) % 2**53
        try:
            reply = await self._client.chat.completions.create(
                model=self._name,
                messages=[],
                temperature=episode.temperature,
                max_completion_tokens=omit if episode.max_tokens is None else episode.max_tokens,
                seed=omit if seed is None else seed,
                extra_body={"messages": to_messages(items), **offered, **episode.fields},
            )
        except (OpenAIError, JSONDecodeError, UnicodeEncodeError) as error:  # the client lets the last two through
            raise StyleError(f"the model failed: {described(error)}") from error
        choice = first_choice(reply)
        if choice is None:
            raise StyleError(f"the model returned no choice: {reply!s:.200}")
        return choice
