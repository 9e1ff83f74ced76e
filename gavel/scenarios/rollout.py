"""The agent loop: a model works on a task of a scenario, which gives a trajectory.

It never raises for what the agent or a tool does: a bad tool call is answered with a tool error, running out
of turns gives status `truncated`, and a model that cannot be reached, or that answers with anything but a
completion, gives status `failed` with the reason.
"""

from collections.abc import Mapping
from json import JSONDecodeError
from typing import Any, Protocol

from openai import AsyncOpenAI, OpenAIError, omit
from openai.types.chat.chat_completion import ChatCompletion, Choice
from openai.types.chat.chat_completion_message import ChatCompletionMessage

from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory


class ChatModel(Protocol):
    """Anything that serves chat completions under a name."""

    def openai_client(self) -> AsyncOpenAI: ...

    def get_inference_name(self) -> str: ...


async def rollout(
    model: ChatModel,
    scenario: Scenario,
    task: Task,
    *,
    temperature: float = 1.0,
    max_tokens: int | None = None,
    seed: int | None = None,
    fields: Mapping[str, Any] | None = None,
) -> Trajectory:
    """Lets `model` work on `task` until it answers without a tool call, a tool ends the episode, or turns run out.

    `max_tokens` bounds each turn. With a `seed` the sampled turns are the same for the same policy. Each request's body
    gets `fields` too.
    """
    client = model.openai_client()
    name = model.get_inference_name()
    tools = scenario.toolbox.schemas
    trajectory = Trajectory(
        messages_and_choices=[
            {"role": "system", "content": scenario.system},
            {"role": "user", "content": task.user},
        ],
        tools=tools or None,
        metadata={"scenario": scenario.name, "task": task.model_dump(mode="json")},
        metrics={"turns": 0, "tool_errors": 0},
    )
    offered = {**({"tools": tools} if tools else {}), **(fields or {})}
    for turn in range(scenario.max_turns):
        try:
            reply = await client.chat.completions.create(
                model=name,
                messages=[],
                temperature=temperature,
                max_completion_tokens=omit if max_tokens is None else max_tokens,
                seed=omit if seed is None else seed + turn,
                # They are plain JSON already; as typed arguments the client would walk all of them at every turn.
                extra_body={"messages": trajectory.messages(), **offered},
            )
        except (OpenAIError, JSONDecodeError, UnicodeEncodeError) as error:  # the client lets the last two through
            return _ended(trajectory, "failed", f"{type(error).__name__}: {error}")
        choice = _first_choice(reply)
        if choice is None:
            return _ended(trajectory, "failed", f"the model returned no choice: {reply!s:.200}")
        trajectory.messages_and_choices.append(choice)
        trajectory.metrics["turns"] = turn + 1
        trajectory.policy_version = (choice.model_extra or {}).get("policy_version")
        if choice.finish_reason == "length":
            return _ended(trajectory, "truncated", "a turn reached its token limit")
        if not choice.message.tool_calls:
            return trajectory
        over = False
        for call in choice.message.tool_calls:
            if call.type != "function":
                return _ended(trajectory, "failed", f"tool calls of type {call.type} are not supported")
            result = await scenario.toolbox.call(call.function.name, call.function.arguments, task)
            trajectory.metrics["tool_errors"] += result.error
            over = over or result.done
            trajectory.messages_and_choices.append({"role": "tool", "tool_call_id": call.id, "content": result.content})
        if over:
            return trajectory
    return _ended(trajectory, "truncated", f"{scenario.max_turns} turns were used up")


def _first_choice(reply: object) -> Choice | None:
    """The sampled turn; None for any other reply, such as a web page from a wrong address."""
    match reply:
        case ChatCompletion(choices=[Choice(message=ChatCompletionMessage()) as choice, *_]):
            return choice
        case _:
            return None


def _ended(trajectory: Trajectory, status: str, reason: str) -> Trajectory:
    trajectory.status = status  # type: ignore[assignment]
    trajectory.status_reason = reason
    return trajectory
