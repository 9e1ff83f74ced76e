"""Polling: asks the jurors for their ballots. A failed call costs its votes, not the group. The loops, outermost first:

poll                         one ballot per scheduled call of each juror, concurrently
└─ _without_refused          the members but those whose text the juror refuses (searched for in refusals.py)
   └─ _with_fallbacks        the juror's next model, when the one before cannot be used
      └─ _fit_and_ask        a shorter prompt, when the model's context is smaller than assumed
         └─ _ask_with_repair     the prompt and the invalid reply, when the reply cannot be read
            └─ Client.ask        the same request, when the transport fails (loops of gavel/llm/client.py)
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from random import Random

from gavel.judge.errors import ContextTooSmallError
from gavel.judge.panel.ballot import Ballot
from gavel.judge.panel.juror import Juror
from gavel.judge.panel.long_groups import off_loop_if_long
from gavel.judge.panel.position_bias import PositionBias
from gavel.judge.panel.prompt_caching import CacheName, PromptCaching
from gavel.judge.panel.refusals import Refusals
from gavel.judge.panel.reply_forms import ReplyForm, Words
from gavel.judge.panel.schedule import LARGEST_WHOLE, Schedule
from gavel.judge.prompt.canonical import CanonicalGroup
from gavel.judge.prompt.messages import (
    GroupPrompts,
    Prompt,
    count_message_tokens,
    fit_messages,
    max_members_per_prompt,
)
from gavel.judge.prompt.transcript import draw_markers
from gavel.judge.reply.attempts import name_attempts
from gavel.judge.reply.criteria import ids_to_score
from gavel.judge.reply.errors import VerdictError
from gavel.judge.reply.verdict import Verdict
from gavel.judge.rubric import Rubric
from gavel.llm.client import Client
from gavel.llm.errors import ContextError, LlmError, NotAskedError, RefusedError
from gavel.llm.message_parts import IMAGE_TOKENS
from gavel.llm.prompt_cache import CachedPrefix
from gavel.llm.prompt_cut import PromptCutError
from gavel.llm.refusal import CONTENT_FILTER, filtered, is_refusal_text
from gavel.llm.types import Message, Reply
from gavel.prompts import template_id

_INSTRUCTION_BYTES, _TEXT_OVERHEAD_BYTES = 8_000, 40
"""Upper estimates of a prompt's bytes outside of its texts, and around each text; below them no tokens are counted."""
_MAX_ECHO = 4_000
"""Max characters of an invalid reply echoed in the repair prompt."""
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

    async def poll(self, group: CanonicalGroup, schedule: Schedule, seed: str) -> list[Ballot]:
        """Requests one ballot per scheduled call concurrently; lost ones are among them, with their problem.

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
                    calls.append(tasks.create_task(self._in_turn(ballot, question, refusals)))
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

    async def _in_turn(self, ballot: Ballot, question: _Question, refusals: Refusals) -> Ballot:
        with question.caching.call(ballot.order):
            return await self._without_refused(ballot, question, refusals)

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
                return await self._ask_with_repair(ballot, prompt, prefix, indices, client)
            except ContextError as error:
                ballot.problem = error.message
                client.shrink(room, count_message_tokens(prompt.messages), entries, error.limit)

    async def _ask_with_repair(
        self,
        ballot: Ballot,
        prompt: Prompt,
        prefix: CachedPrefix,
        indices: Mapping[str, Sequence[int]],
        client: Client,
    ) -> None:
        """Asks and reads the reply; an invalid reply is sent back with its problem, `content_retries` times.

        `indices`: by label, in the order shown, the member's trajectories in the group; what is stored names them in
        place of labels.
        """
        labels = list(indices)
        ids, schema = ids_to_score(self.rubric, labels), self.form.schema(self.rubric, labels)
        repair: list[Message] = []
        unusable: list[tuple[list[Message], Reply]] = []
        refusal = ""

        @cache  # a reply is read to decide whether a cassette keeps it, and again for its scores
        def read_text(text: str, cut_off: bool) -> Verdict:
            return self.form.read(text, self.rubric, labels, cut_off=cut_off)

        def read(reply: Reply) -> Verdict:
            if reply.repairs["reasoning"]:
                raise VerdictError("it is reasoning without an answer")
            return read_text(reply.text, reply.finish_reason == "length")

        def can_be_used(reply: Reply) -> bool:
            try:
                read(reply)
            except VerdictError:
                return False
            return reply.finish_reason != CONTENT_FILTER

        for _ in range(1 + self.content_retries * self.form.can_be_repaired):
            ballot.calls += 1
            try:
                reply = await client.ask(prompt.messages + repair, schema, can_be_used, unusable, prefix)
            except PromptCutError as error:
                ballot.replies.append(error.reply)
                raise
            except ContextError:
                ballot.calls -= 1  # a refused prompt is not judged, and costs nothing
                raise
            except RefusedError as error:
                ballot.refusal = ballot.problem = error.message
                return
            except LlmError as error:
                ballot.calls -= isinstance(error, NotAskedError)
                ballot.problem = error.message
                return
            ballot.replies.append(reply)
            if reply.finish_reason == CONTENT_FILTER:
                ballot.refusal = ballot.problem = filtered(client.name, reply.text)
                return
            try:
                verdict = read(reply)
            except VerdictError as error:
                cut_off = "it was cut off at the token limit; " if reply.finish_reason == "length" else ""
                problem = cut_off + error.message
                ballot.problem = f"the reply cannot be used: {name_attempts(problem, indices)}"
                refusal = filtered(client.name, reply.text) if is_refusal_text(reply.text) else ""
                request = ballot.render("judge/repair.j2", problem=problem, labels=ids)
                unusable.append((prompt.messages + repair, reply))
                repair = [
                    {"role": "assistant", "content": reply.text.strip()[:_MAX_ECHO] or "(no reply)"},
                    {"role": "user", "content": request},
                ]
            else:
                ballot.scores = {
                    member: replace(scored, explanation=name_attempts(scored.explanation, indices))
                    for member, label in zip(ballot.shown, labels, strict=True)
                    if (scored := verdict.scores.get(label))
                }
                by_label = dict(zip(labels, ballot.shown, strict=True))
                ballot.unread = {by_label[label]: problem for label, problem in verdict.unread.items()}
                ballot.reply_key = reply.key
                ballot.repairs = reply.repairs + verdict.repairs
                bias = self.position_bias.setdefault(len(labels), PositionBias())
                if not verdict.unread:
                    bias.add([verdict.scores[label].score for label in labels])
                return
        ballot.refusal = refusal
