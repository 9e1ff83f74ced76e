"""verl's data as a scenario: rows of a parquet file, a `compute_score` as hand reward, and tools from its YAML.

    gavel train "verl:train.parquet?held_out=test.parquet&reward=reward.py:compute_score" --model Qwen/Qwen3-4B
    scenario = verl_scenario("train.parquet?reward=verl.utils.reward_score:default_compute_score&tools=tools.yaml")

A row's `prompt` is the conversation as it stands, system messages and examples included. Its ground truth is told to
the judge as the reference, and never to the agent. verl itself is needed only by rewards and tools that import it.
"""

from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, Field

from gavel.integrations.verl.dataset import load_compute_score, read_tasks
from gavel.integrations.verl.tools import VerlTools
from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatModel
from gavel.scenarios.episode import Episode
from gavel.scenarios.packaged_world import parsed
from gavel.scenarios.rollout import Conversation
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task
from gavel.scenarios.tools import Toolbox
from gavel.scenarios.trajectory import Trajectory

_SHOW = "Write verl:train.parquet?held_out=test.parquet&reward=module:function (docs/bridges.md)."


class VerlOptions(BaseModel):
    """The options after the dataset's path in an address."""

    held_out: Path | None = None
    """A file of held-out rows; by default a fifth of the rows is held out."""
    reward: str | None = Field(default=None, min_length=1)
    """`module:function` or `file.py:function`."""
    success: float | None = None
    """Min score of a success."""
    tools: Path | None = None
    """verl's YAML of tools."""
    turns: int = Field(default=8, ge=1)
    """Max turns of the agent."""
    tasks: int | None = Field(default=None, ge=1)
    """Max training rows, from the first; by default all."""
    seconds: float | None = Field(default=None, gt=0)
    """Max seconds of an episode."""
    reference: bool = True
    """Whether the judge is shown the ground truth."""


def verl_scenario(address: str) -> Scenario:
    """The scenario of a verl dataset. `address`: the part after `verl:`, a path and options.

    Raises `ScenarioError` for unreadable data and failing imports.
    """
    path, options, _ = parsed("verl", address, VerlOptions, all_known=True)
    if not path:
        raise ScenarioError("verl: names no file", _SHOW)
    if options.success is not None and options.reward is None:
        raise ScenarioError("success= needs a reward to compare with", f"Add reward=module:function. {_SHOW}")
    file = Path(path).expanduser()
    score = None if options.reward is None else load_compute_score(options.reward)
    held_out = options.held_out and read_tasks(options.held_out.expanduser(), None, reference=options.reference)
    tools = None if options.tools is None else VerlTools(options.tools.expanduser())

    async def play(model: ChatModel, task: Task, episode: Episode) -> Trajectory:
        """Plays until a turn calls no tool or reaches its token limit, or `turns` are used up; without tools a single
        turn answers. Raises `NoTurnError`, which the rollout's caller reports."""
        trajectory = episode.trajectory
        trajectory.messages_and_choices = [*cast("list[Message]", task.data["prompt"])]
        trajectory.metrics["tool_reward"] = 0.0
        offered = Toolbox(())
        if tools is not None:
            info: Any = task.data.get("extra_info") or {}
            tools.offer(offered, info.get("tools_kwargs") or {}, trajectory.metrics)
        talk = Conversation(episode, model, trajectory, offered)
        for _ in range(options.turns):
            choice = await talk.take_turn(episode.seed)
            if choice is None or choice.finish_reason == "length" or tools is None or not choice.message.tool_calls:
                return trajectory
            await talk.answer_calls(choice)
        talk.truncate(f"{options.turns} turns were used up")
        return trajectory

    return Scenario(
        f"verl_{file.stem}",
        tasks=read_tasks(file, options.tasks, reference=options.reference),
        held_out=held_out or 0.2,
        rollout=play,
        max_turns=options.turns,
        max_seconds=options.seconds,
        hand_reward=score,
        success=None if score is None or (least := options.success) is None else lambda found: score(found) >= least,
    )


scenario_at = verl_scenario
"""The name by which `verl:ADDRESS` is found."""
