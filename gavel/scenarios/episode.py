"""A running attempt at a task, as its world and tools see it.

It is passed to parameters annotated `Episode`, of tools, environment methods and own rollouts; the agent is not shown
these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from json import JSONDecodeError
from random import Random, SystemRandom
from typing import Any

from openai import AsyncOpenAI, OpenAIError
from openai.types.chat.chat_completion import ChatCompletion, Choice

from gavel.base.errors import GavelError
from gavel.base.plain_calls import PlainCalls
from gavel.llm.failures import PAGE_REMEDY, is_page, kind_of, with_remedy
from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatModel, RolloutClient, first_choice
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory


@dataclass(slots=False)
class Episode:
    """One attempt at a task."""

    task: Task
    trajectory: Trajectory = field(default_factory=Trajectory)
    """The conversation so far; it grows."""
    seed: int | None = None
    """The seed, equal for the same position in a run; None = the episode is not reproducible."""
    temperature: float = 1.0
    """Sampling temperature of the agent's turns."""
    max_tokens: int | None = None
    """Max tokens of each turn of the agent."""
    model: ChatModel | None = None
    """The policy that acts."""
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Additional fields of each request to the policy."""
    agents: list[str] = field(default_factory=list[str])
    """Names of the `Agent`s created so far."""
    call_seconds: float | None = None
    """Max seconds of one tool call."""
    plain_calls: PlainCalls = field(default_factory=PlainCalls, repr=False, compare=False)
    """Runs tools that are plain functions."""

    @cached_property
    def random(self) -> Random:
        """The world's random generator: the same numbers for the same seed."""
        return SystemRandom() if self.seed is None else Random(f"world {self.seed}")

    @property
    def turns(self) -> int:
        """Number of the agent's turns so far."""
        return sum(1 for _ in self.trajectory.choices())

    async def sample(
        self,
        client: AsyncOpenAI,
        model: str,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        seed: int | None,
        fields: Mapping[str, Any] | None = None,
    ) -> tuple[ChatCompletion, Choice]:
        """Samples the turn after `messages`, with the episode's temperature and token limit. Raises `NoTurnError`."""
        # All of it is plain JSON: with typed arguments the client would walk the messages at every turn.
        body: dict[str, Any] = {"model": model, "temperature": self.temperature, "messages": list(messages)}
        given = {"max_completion_tokens": self.max_tokens, "seed": seed, "tools": list(tools) or None}
        body |= {name: value for name, value in given.items() if value is not None} | dict(fields or {})
        try:
            if isinstance(client, RolloutClient):
                reply = await client.turn(body)
            else:
                reply = await client.chat.completions.create(model=body.pop("model"), messages=[], extra_body=body)
        except (OpenAIError, JSONDecodeError, UnicodeEncodeError) as error:  # the client lets the last two through
            raise NoTurnError(with_remedy(error, model), kind_of(error) == "too long") from error
        if (choice := first_choice(reply)) is None:
            hint = f" {PAGE_REMEDY}" if is_page(str(reply)) else ""
            raise NoTurnError(f"the model returned no choice: {reply!s:.200}{hint}")
        return reply, choice


class NoTurnError(GavelError):
    """The model of an agent returned no turn."""

    def __init__(self, message: str, is_too_long: bool = False) -> None:
        """`is_too_long`: the conversation exceeds the model's context."""
        super().__init__(message)
        self.is_too_long = is_too_long
