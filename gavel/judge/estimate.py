"""The cost of judging, estimated without a call: every prompt is made as for judging, counted, and not sent.

    estimate = await estimate_groups(judge, groups)
    estimate.words      "400 calls, about 1.9 M prompt tokens and 0.2 M completion tokens: about 0.71 USD"

Prompts are counted as `cl100k_base` counts them. Replies cannot be known before: a judge is taken to write
`REPLY_TOKENS` tokens for each score, and `REASONING_TOKENS` more for each call if LiteLLM lists it as reasoning.
Repeated calls, and prompts that a vendor has cached and sells for less, are not in it.
"""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from gavel.base.text import counted
from gavel.judge.judge import Judge
from gavel.judge.prompt.call_prompt import count_message_tokens
from gavel.llm.budget import price
from gavel.llm.cassette import Question
from gavel.llm.client import Client
from gavel.llm.errors import NotAskedError
from gavel.llm.providers import model_info
from gavel.llm.types import Accept, Message, Reply, Schema
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

REPLY_TOKENS = 80
"""Tokens of one score with its explanation."""
DIGIT_TOKENS = 10
"""Tokens of one score that is a digit behind its label."""
REASONING_TOKENS = 1500
"""Tokens of reasoning in one call to a reasoning model."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Calls with their tokens and cost."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    """Cost of the models with a known price."""
    unpriced: tuple[str, ...] = ()
    """The models without one."""
    replayed: int = 0
    """Replies that are on the judge's cassette, and cost nothing."""

    @property
    def words(self) -> str:
        cost = f"about {self.cost_usd:.2g} USD" if self.cost_usd < 1 else f"about {self.cost_usd:,.2f} USD"
        if self.unpriced:
            known = "" if not self.cost_usd else f", {cost} for the others"
            cost = f"cost unknown: {', '.join(self.unpriced)} has no price (set GAVEL_PRICES){known}"
        replayed = f"{counted(self.replayed, 'reply')} on the cassette, " if self.replayed else ""
        if not self.calls:
            return f"{replayed}no call"
        return (
            f"{replayed}{counted(self.calls, 'call')}, about {_tokens(self.prompt_tokens)} prompt tokens and "
            f"{_tokens(self.completion_tokens)} completion tokens: {cost}"
        )


async def estimate_groups(judge: Judge, groups: Iterable[TrajectoryGroup], times: int = 1) -> Estimate:
    """Estimate of judging these groups, and `times` as many like them. Needs no API key, and no price.

    With a cassette that replays, the judge has the replies that are on it.
    """
    asked: list[tuple[Client, int, int]] = []
    rehearsal = judge.rehearsal(_Rehearsed, asked=asked)
    before = judge.cassette.replayed if judge.cassette else 0
    for group in groups:
        if group.trajectories:
            await rehearsal.score(group)
            await asyncio.sleep(0)  # a long file does not block what else runs in this event loop
    prices = {client.name: price(client.name, client.prices) for client, *_ in asked}
    priced = [(known, prompt, reply) for client, prompt, reply in asked if (known := prices[client.name])]
    return Estimate(
        calls=len(asked) * times,
        prompt_tokens=sum(prompt for _, prompt, _ in asked) * times,
        completion_tokens=sum(reply for *_, reply in asked) * times,
        cost_usd=sum(prompt * known[0] + reply * known[1] for known, prompt, reply in priced) / 1e6 * times,
        unpriced=tuple(name for name, known in prices.items() if known is None),
        replayed=judge.cassette.replayed - before if judge.cassette else 0,
    )


async def estimate_run(judge: Judge, groups: int, group_size: int, member_tokens: int) -> Estimate:
    """Estimate of judging so many groups of a training run, if each member had `member_tokens` tokens."""
    members = [Trajectory(messages_and_choices=_conversation(number, member_tokens)) for number in range(group_size)]
    return await estimate_groups(judge, [TrajectoryGroup(members)], times=groups)


@dataclass(frozen=True, slots=True)
class _Rehearsed(Client):
    """A client that notes what it is asked, and sends nothing."""

    asked: list[tuple[Client, int, int]] = field(default_factory=list[tuple[Client, int, int]])
    """(client, tokens of the prompt, tokens of the reply) of each call."""

    def check(self) -> None:
        """What would not be sent needs no key."""

    async def ask(
        self, messages: list[Message], schema: Schema, accept: Accept | None = None, *_: object, **__: object
    ) -> Reply:
        if self.cassette is not None and not self.cassette.asks_now and isinstance(self.model, str):
            question = Question(self.name, self.params, schema, messages)
            if (reply := await self.cassette.stored(question, accept)) is not None:
                return reply
        tokens = count_message_tokens(messages) + len(json.dumps(schema)) // 4
        if self.wire != "chat":  # a decision model writes nothing
            reply = DIGIT_TOKENS * len(schema["required"]) if self.wire == "logprobs" else 0
        else:
            reasons = isinstance(self.model, str) and model_info(self.name).get("supports_reasoning")
            ids = schema["properties"]["scores"]["items"]["properties"]["trajectory_id"]["enum"]
            reply = REPLY_TOKENS * len(ids) + (REASONING_TOKENS if reasons else 0)
        self.asked.append((self, tokens, reply))
        raise NotAskedError("this is a rehearsal: nothing is sent.")


def _conversation(number: int, tokens: int) -> list[Any]:
    """A task and an attempt of about `tokens` tokens; attempts of different numbers share no text."""
    dice = Random(number)
    words = " ".join(dice.choice(_WORDS) for _ in range(max(tokens - 20, 1)))
    return [{"role": "user", "content": "The task."}, {"role": "assistant", "content": f"{number}: {words}"}]


_WORDS = ("red", "green", "blue", "one", "two", "three", "four", "north", "south", "east", "west", "up", "down")


def _tokens(count: int) -> str:
    """`1.9 M`, `12 k` or `640`."""
    if count >= 950_000:
        return f"{count / 1e6:,.1f} M"
    return f"{count / 1e3:.0f} k" if count >= 9_500 else f"{count:,}"
