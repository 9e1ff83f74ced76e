"""Polling: asks the jurors for their ballots. A failed call costs its votes, not the group. The loops, outermost first:

poll                         one ballot per scheduled call of each juror, concurrently
└─ _without_refused          the members but those whose text the juror refuses (searched for in refusal_search.py)
   └─ _with_fallbacks        the juror's next model, when the one before cannot be used
      └─ _fit_and_ask        a shorter prompt, when the model's context is smaller than assumed
         └─ ask_with_repair      the prompt and the invalid reply, when the reply cannot be read (repair_requests.py)
            └─ Client.ask        the same request, when the transport fails (loops of gavel/llm/client.py)
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random

from gavel.judge.errors import ContextTooSmallError
from gavel.judge.panel.ballot import Ballot
from gavel.judge.panel.juror import Juror
from gavel.judge.panel.position_bias import PositionBias
from gavel.judge.panel.prompt_caching import CacheName, PromptCaching
from gavel.judge.panel.refusal_search import Refusals
from gavel.judge.panel.repair_requests import RepairRequests
from gavel.judge.panel.requested_reply import ReplyForm, Words
from gavel.judge.panel.schedule import LARGEST_WHOLE, Schedule
from gavel.judge.panel.thread_offload import off_loop_if_long
from gavel.judge.prompt.call_prompt import (
    GroupPrompts,
    count_message_tokens,
    fit_messages,
    max_members_per_prompt,
)
from gavel.judge.prompt.canonical_group import CanonicalGroup
from gavel.judge.prompt.fenced_transcript import draw_markers
from gavel.judge.rubric import Rubric
from gavel.llm.client import Client
from gavel.llm.errors import ContextError
from gavel.llm.message_parts import IMAGE_TOKENS
from gavel.prompts import template_id

_INSTRUCTION_BYTES, _TEXT_OVERHEAD_BYTES = 8_000, 40
"""Upper estimates of a prompt's bytes outside of its texts, and around each text; below them no tokens are counted."""
_MAX_FITTINGS = 5
"""Max prompts made for a model whose context size is not known."""


@dataclass(frozen=True, slots=True)
class _Question:
    """What the calls of one juror on a group have in common."""

    group: CanonicalGroup
    prompts: GroupPrompts
    clients: Sequence[Client]
    caching: PromptCaching


@dataclass(frozen=True, slots=True)
class Poll:
    """The jurors and what they are asked."""

    jurors: Sequence[Juror]
    clients: Sequence[Sequence[Client]]
    """The models of each juror, the fallbacks after the first."""
    rubric: Rubric
    content_retries: int
    position_bias: dict[int, PositionBias]
    """By number of members shown; updated with every ballot."""
    cache: CacheName = "auto"
    """Whether the first call of each juror goes ahead."""
    form: ReplyForm = field(default_factory=Words)

    async def poll(
        self, group: CanonicalGroup, schedule: Schedule, seed: str, on_ballot: Callable[[Ballot], None]
    ) -> list[Ballot]:
        """Requests one ballot per scheduled call concurrently; lost ones are among them, with their problem.

        `on_ballot` is told of each as soon as it is over.

        All calls have the same markers, so that their prompts begin alike. Only an order that comes again, such as that
        of a pair, has other markers: a cassette would answer the same prompt with the same reply.
        """
        repetitions: Counter[tuple[int, ...]] = Counter()
        prompts: list[GroupPrompts] = []
        calls: list[asyncio.Task[Ballot]] = []
        async with asyncio.TaskGroup() as tasks:
            for number, (juror, clients, calls_shown) in enumerate(
                zip(self.jurors, self.clients, schedule, strict=True)
            ):
                refusals = Refusals(len(group.members))
                caching: dict[int, PromptCaching] = {}
                for shown in calls_shown:
                    repetition = repetitions[shown]
                    repetitions[shown] += 1
                    if repetition == len(prompts):
                        prompts.append(
                            await off_loop_if_long(group.characters, self._prompts, group, f"{seed}/{repetition}")
                        )
                    if repetition not in caching:
                        caching[repetition] = PromptCaching(self.cache, calls_shown, len(calls))
                    ballot = Ballot(len(calls), shown, clients[0].name, number, juror.weight)
                    question = _Question(group, prompts[repetition], clients, caching[repetition])
                    calls.append(tasks.create_task(self._in_turn(ballot, question, refusals, on_ballot)))
        return [call.result() for call in calls]

    def _prompts(self, group: CanonicalGroup, seed: str) -> GroupPrompts:
        return GroupPrompts(group, draw_markers(group, Random(f"{seed}/markers")), self.rubric)

    def max_shown(self, group: CanonicalGroup) -> int:
        """How many members fit one prompt of every model, at most `LARGEST_WHOLE`."""
        entries = LARGEST_WHOLE * max(1, len(self.rubric.criteria))
        most = self.form.most_scores
        if most is not None and most < entries:
            return max(2, most * LARGEST_WHOLE // entries)
        room = min(client.room(entries) for client in chain.from_iterable(self.clients))
        text_bytes = sum(len(text.encode(errors="replace")) + _TEXT_OVERHEAD_BYTES for text in set(group.texts))
        text_bytes += IMAGE_TOKENS * len(group.images)
        if text_bytes < room - _INSTRUCTION_BYTES:
            return LARGEST_WHOLE
        return max_members_per_prompt(group, self.rubric, room)

    async def _in_turn(
        self, ballot: Ballot, question: _Question, refusals: Refusals, on_ballot: Callable[[Ballot], None]
    ) -> Ballot:
        with question.caching.call(ballot.order):
            await self._without_refused(ballot, question, refusals)
        on_ballot(ballot)
        return ballot

    async def _without_refused(self, ballot: Ballot, question: _Question, refusals: Refusals) -> Ballot:
        """Asks for the ballot and, when it is refused because of some members' text, again without these members."""

        async def ask(members: tuple[int, ...]) -> Ballot:
            trial = Ballot(ballot.order, members, ballot.model, ballot.juror, ballot.weight)
            await self._with_fallbacks(trial, question)
            ballot.add_costs(trial)
            return trial

        scheduled, asked_again = ballot.shown, False
        while True:
            if refusals.everything:
                words = next(iter(refusals.members.values()))
                ballot.shown, ballot.refused = scheduled, {}
                ballot.problem = f"the judge model refuses all that it is shown of this group: {words}"
                return ballot
            ballot.refused = {member: refusals.members[member] for member in scheduled if member in refusals.members}
            ballot.shown = tuple(member for member in scheduled if member not in ballot.refused)
            if len(ballot.shown) < min(2, len(scheduled)):
                ballot.problem = "the judge model refuses the text of the members beside it"
                return ballot
            await self._with_fallbacks(ballot, question)
            if ballot.scores is not None:
                refusals.answered(ballot.shown)
            if not ballot.refusal:
                return ballot
            if await refusals.narrow_down(ballot.shown, ask):
                continue
            if refusals.everything:
                continue
            if asked_again:  # a refusal by chance would hardly come twice
                ballot.problem = f"the judge model refuses these texts together, but none alone: {ballot.refusal}"
                return ballot
            asked_again = True

    async def _with_fallbacks(self, ballot: Ballot, question: _Question) -> Ballot:
        """Asks the juror's models in turn until one fills the ballot."""
        ballot.refusal = ""
        for client in question.clients:
            ballot.model = client.name
            await self._fit_and_ask(ballot, question, client)
            if ballot.scores is not None:
                ballot.refusal = ""
                break
        return ballot

    async def _fit_and_ask(self, ballot: Ballot, question: _Question, client: Client) -> None:
        """Asks with a prompt that fits the model's context, and a shorter one when the model refuses it as too long."""
        entries = len(ballot.shown) * max(1, len(self.rubric.criteria))
        for _ in range(_MAX_FITTINGS):
            room = client.room(entries)
            try:
                prompt = await off_loop_if_long(
                    question.group.characters, fit_messages, question.prompts, ballot.shown, room
                )
            except ContextTooSmallError as error:
                ballot.problem, ballot.no_room = error.message, error
                return
            ballot.no_room, ballot.shortened = None, prompt.shortened
            ballot.prompt_ids += map(template_id, self.form.templates(self.rubric))
            try:
                labels, members = question.prompts.markers.labels, question.group.members
                indices = {labels[member]: members[member].indices for member in ballot.shown}
                prompt = replace(prompt, messages=self.form.prompt(prompt.messages, self.rubric, list(indices)))
                prefix = await question.caching.prefix(ballot.order, prompt, client)
                await self._repaired.ask_with_repair(ballot, prompt, prefix, indices, client)
                return self._learn_position_bias(ballot)
            except ContextError as error:
                ballot.problem = error.message
                client.shrink(room, count_message_tokens(prompt.messages), entries, error.limit)

    @property
    def _repaired(self) -> RepairRequests:
        return RepairRequests(self.form, self.rubric, self.content_retries)

    def _learn_position_bias(self, ballot: Ballot) -> None:
        """Takes the ballot into the mean offset of each position, if it has a score for every member that it showed."""
        if ballot.scores is not None and not ballot.unread:
            bias = self.position_bias.setdefault(len(ballot.shown), PositionBias())
            bias.add([ballot.scores[member].score for member in ballot.shown])
