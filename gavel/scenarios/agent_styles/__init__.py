"""Other ways for an agent to take its turns, over any scenario.

    gavel train react:returns_desk …         # thoughts and actions as text, no native tool calls
    gavel train branching:returns_desk …     # several turns sampled, one of them chosen by vote

    scenario = react(gavel.find_scenario("returns_desk"))

The scenario's own episode runs underneath, with the parsed tool calls: tools, world, simulated user and limits are the
same, and `success`, `hand_reward` and the measures are those of that episode. The agent's conversation is the style's
rendering of it; its turns are sampled and trained.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from openai.types.chat.chat_completion import Choice

from gavel.llm.types import Message
from gavel.scenarios.episode import Episode
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.stepped_episode import SteppedEpisode, outcome
from gavel.scenarios.trajectory import MessageOrChoice, Trajectory, to_messages


def restyle(scenario: Scenario, name: str, play: Callable[[SteppedEpisode, Episode], Awaitable[None]]) -> Scenario:
    """The scenario called `SCENARIO_NAME`, whose episodes `play` plays with the turns of the agent's own trajectory.

    That trajectory gets the status, metrics and measures of the underlying episode.
    """

    async def rollout(model: object, episode: Episode) -> Trajectory:
        trajectory = episode.trajectory
        async with SteppedEpisode(scenario, episode.task, seed=episode.seed) as beneath:
            await play(beneath, episode)
            inner = beneath.trajectory
        trajectory.status, trajectory.status_reason = inner.status, inner.status_reason
        trajectory.metrics = {**inner.metrics, **trajectory.metrics, **outcome(scenario, inner)}
        trajectory.logs += inner.logs
        return trajectory

    return Scenario(
        f"{scenario.name}_{name}",
        rollout=rollout,
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


async def sample_turn(
    episode: Episode, items: Sequence[MessageOrChoice], tools: Sequence[Message], *place: int | str
) -> Choice:
    """Samples the policy's turn after `items`; `place` distinguishes it from other turns, for its seed. Raises
    `NoTurnError`."""
    model = episode.model
    assert model is not None
    seed = None if episode.seed is None else seed_of(episode.seed, "style", *place) % 2**53
    client, name = model.openai_client(), model.get_inference_name()
    return (await episode.sample(client, name, to_messages(items), tools, seed=seed, fields=episode.fields))[1]
