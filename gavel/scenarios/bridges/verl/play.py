"""An episode on a row of verl's: the prompt as it stands, then turns of the agent and of its tools."""

from dataclasses import dataclass
from typing import Any, cast

from openai import omit

from gavel.llm.types import Message
from gavel.scenarios.bridges.verl.tools import VerlTools
from gavel.scenarios.chat_model import ChatModel, first_choice
from gavel.scenarios.episode import Episode
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class VerlRollout:
    """The rollout of a scenario; `tools` None: a single turn answers."""

    tools: VerlTools | None
    turns: int

    async def play(self, model: ChatModel, task: Task, episode: Episode) -> Trajectory:
        """Until a turn calls no tool, reaches its token limit, or `turns` are used up. Raises what the model's client
        does, which the rollout's caller tells."""
        trajectory = episode.trajectory
        trajectory.metrics = {"turns": 0, "tool_errors": 0, "tool_reward": 0.0}
        trajectory.messages_and_choices = [*cast("list[Message]", task.data["prompt"])]
        trajectory.tools = None if self.tools is None else self.tools.schemas
        info: Any = task.data.get("extra_info") or {}
        for turn in range(self.turns):
            choice = await self._turn(model, episode, turn)
            trajectory.messages_and_choices.append(choice)
            trajectory.metrics["turns"] = turn + 1
            if choice.finish_reason == "length":
                trajectory.status, trajectory.status_reason = "truncated", "a turn reached its token limit"
                return trajectory
            if self.tools is None or not choice.message.tool_calls:
                return trajectory
            for call in choice.message.tool_calls:
                name, arguments = (
                    (call.function.name, call.function.arguments) if call.type == "function" else (call.type, "{}")
                )
                answer = await self.tools.call(name, arguments, info.get("tools_kwargs") or {})
                trajectory.metrics["tool_errors"] += answer.error
                trajectory.metrics["tool_reward"] += answer.reward
                told: Message = {"role": "tool", "tool_call_id": call.id, "content": answer.text}
                trajectory.messages_and_choices.append(told)
        trajectory.status, trajectory.status_reason = "truncated", f"{self.turns} turns were used up"
        return trajectory

    async def _turn(self, model: ChatModel, episode: Episode, turn: int) -> Any:
        trajectory = episode.trajectory
        body = {"messages": trajectory.messages(), **({"tools": trajectory.tools} if trajectory.tools else {})}
        reply = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(),
            messages=[],
            temperature=episode.temperature,
            max_completion_tokens=omit if episode.max_tokens is None else episode.max_tokens,
            seed=omit if episode.seed is None else episode.seed + turn,
            extra_body={**body, **episode.fields},
        )
        choice = first_choice(reply)
        if choice is None:
            raise ValueError(f"the model returned no choice: {reply!s:.200}")
        return choice
