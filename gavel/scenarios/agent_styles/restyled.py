"""Shared parts of the agent styles: the restyled scenario, and the sampling of its agent's turns.

The agent's conversation is a style's rendering of the underlying episode; its turns are sampled and trained.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from openai.types.chat.chat_completion import Choice

from gavel.llm.types import Message, text_of
from gavel.scenarios.episode import Episode
from gavel.scenarios.scenario import OwnRollout, Scenario
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.stepped_episode import SteppedEpisode, outcome
from gavel.scenarios.trajectory import MessageOrChoice, Trajectory, to_messages


def restyle(scenario: Scenario, name: str, play: OwnRollout) -> Scenario:
    """The scenario with `play` as its rollout, called `SCENARIO_NAME`; its checks read the metrics of `conclude`."""
    return Scenario(
        f"{scenario.name}_{name}",
        rollout=play,
        tasks=scenario.tasks("train"),
        held_out=scenario.tasks("held_out"),
        max_turns=scenario.max_turns,
        call_seconds=scenario.call_seconds,
        rubric=scenario.rubric,
        success=scenario.success and partial(_metric, "success"),
        hand_reward=scenario.hand_reward and partial(_metric, "hand_reward"),
        measures={each: partial(_metric, each) for each in scenario.measures},
    )


def _metric(name: str, trajectory: Trajectory) -> Any:
    return trajectory.metrics[name]


def conclude(trajectory: Trajectory, scenario: Scenario, beneath: SteppedEpisode) -> Trajectory:
    """The agent's trajectory with the status, metrics and measures of the underlying episode."""
    inner = beneath.trajectory
    trajectory.status, trajectory.status_reason = inner.status, inner.status_reason
    trajectory.metrics = {**inner.metrics, **trajectory.metrics, **outcome(scenario, inner)}
    trajectory.logs += inner.logs
    return trajectory


def heard(messages: Sequence[Message]) -> str:
    """Tool results and the world's or user's words as text for an agent without native tool calls."""
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
        """Samples the turn after `items`; `place` distinguishes it from other turns, for its seed. Raises
        `NoTurnError`."""
        episode = self._episode
        seed = None if episode.seed is None else seed_of(episode.seed, "style", *place) % 2**53
        _, choice = await episode.sample(
            self._client, self._name, to_messages(items), tools, seed=seed, fields=episode.fields
        )
        return choice
