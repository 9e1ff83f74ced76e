"""Polling: asks the jurors for their ballots. A failed call costs its votes, not the group. Three loops ask again:

poll                         one ballot per scheduled call of each juror, concurrently
└─ _without_refused          1. without the members whose text the juror refuses (`Refusals`)
   └─ _with_fallbacks        2. the juror's next model, when the one before cannot be used
      └─ _ask_model          3. a shorter prompt, when it is too long for the model; the prompt with the invalid reply
         │                      and its problem, when the reply cannot be read
         └─ Client.ask       the same request, when the transport fails (loops of gavel/llm/client.py)

A reply that cannot be read is asked for again with its problem, `content_retries` times; only the last one is shown:

    system, user                                                   {"A": 0.9, "B": "good"}      cannot be read
    system, user, assistant: the reply, user: "B has no number"    {"A": 0.9, "B": 0.7}         the ballot's scores
"""

import asyncio
import contextvars
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from random import Random
from typing import Literal, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from gavel.judge.errors import ContextTooSmallError
from gavel.judge.panel.judgements import Ballot
from gavel.judge.panel.juror import Juror
from gavel.judge.panel.modes import LARGEST_WHOLE, Groupwise, Schedule
from gavel.judge.prompt.call_prompt import (
    GroupPrompts,
    Prompt,
    count_message_tokens,
    max_members_per_prompt,
)
from gavel.judge.prompt.canonical_group import CanonicalGroup
from gavel.judge.prompt.fenced_transcript import draw_markers
from gavel.judge.prompt.truncate import count_tokens
from gavel.judge.reply.verdict import Verdict, VerdictError, ids_to_score
from gavel.judge.rubric import Rubric
from gavel.judge.stats import PositionBias
from gavel.llm.client import Client
from gavel.llm.errors import ContextError, LlmError, NotAskedError, RefusedError
from gavel.llm.failures import CONTENT_FILTER, filtered, is_refusal_text
from gavel.llm.prompt_cut import PromptCutError
from gavel.llm.providers import caches_prompts, min_cached_tokens
from gavel.llm.types import IMAGE_TOKENS, NO_PREFIX, CachedPrefix, Message, Reply, Schema, text_of
from gavel.prompts import render, template_id

CacheName = Literal["auto", "lead", "off"]
"""Whether a juror's first call on a group goes ahead: "auto" where that saves money, "lead" always, "off" never."""
LONG = 200_000
"""Characters from which a group is processed in a thread: it takes 0.1 s and more, which would block other calls."""
_INSTRUCTION_BYTES, _TEXT_OVERHEAD_BYTES = 8_000, 40
"""Upper estimates of a prompt's bytes outside of its texts, and around each text; below them no tokens are counted."""
_MAX_FITTINGS = 5
"""Max prompts made for a model whose context size is not known."""
_MAX_ECHO = 4_000
"""Max characters of an invalid reply echoed in the repair prompt."""

WARM_SECONDS = 1.0
"""After so long a request that is being answered has its prompt in the server's cache."""

P = ParamSpec("P")
R = TypeVar("R")
_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor] = WeakKeyDictionary()


async def off_loop_if_long(characters: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Runs `work` over a group's text of so many characters; in a thread when they are many.

    Threads share one interpreter, so `work` must consist of short steps: one text at a time, never all text at once.
    It is one thread for an event loop: several would not be faster, and the loop would wait for each one's turn.
    """
    if characters <= LONG:
        return work(*args, **kwargs)
    loop = asyncio.get_running_loop()
    if loop not in _threads:
        _threads[loop] = ThreadPoolExecutor(max_workers=1, thread_name_prefix="long group")
    within = partial(contextvars.copy_context().run, work, *args, **kwargs)
    return await loop.run_in_executor(_threads[loop], within)


@dataclass(slots=True)
class _Request:
    """One model's request for a ballot; after an invalid reply, with that reply and its problem."""

    prompt: list[Message]
    indices: Mapping[str, Sequence[int]]
    """Label -> the member's trajectories in the group, in the order shown."""
    room: int
    """Tokens that the prompt was fitted to."""
    prefix: CachedPrefix
    schema: Schema
    read_text: Callable[[str, bool], Verdict]
    """The scores in a text, which may be cut off at the token limit."""
    repair: list[Message] = field(default_factory=list[Message])
    unusable: list[tuple[list[Message], Reply]] = field(default_factory=list[tuple[list[Message], Reply]])
    """Invalid replies so far, with their prompts: a cassette does not keep them."""
    last_read: tuple[str, Verdict] | None = None
    """The text that was read last, and its scores: a cassette first asks whether to keep the reply."""

    def read(self, reply: Reply) -> Verdict:
        """The scores in a reply. Raises `VerdictError`."""
        if self.last_read is None or self.last_read[0] != reply.text:
            try:
                self.last_read = reply.text, self.read_text(reply.text, reply.finish_reason == "length")
            except VerdictError as error:
                if reply.repairs["reasoning"]:
                    raise VerdictError("it is reasoning without an answer") from error
                raise
        return self.last_read[1]

    def can_be_used(self, reply: Reply) -> bool:
        """Whether a cassette should keep the reply."""
        try:
            self.read(reply)
        except VerdictError:
            return False
        return reply.finish_reason != CONTENT_FILTER

    async def send(self, client: Client) -> Reply:
        """The model's reply. Raises `LlmError`."""
        return await client.ask(self.prompt + self.repair, self.schema, self.can_be_used, self.unusable, self.prefix)

    def send_back(self, reply: Reply, request: str) -> None:
        """Shows the invalid reply in the next request, which asks for another one."""
        self.unusable.append((self.prompt + self.repair, reply))
        self.repair = [
            {"role": "assistant", "content": reply.text.strip()[:_MAX_ECHO] or "(no reply)"},
            {"role": "user", "content": request},
        ]


Outcome = Literal["answered", "refused", "failed"]
Ask = Callable[[tuple[int, ...]], Awaitable[Ballot]]
"""Asks a judge model about these members alone."""

_ALONE = 4
"""Members refused one by one, with no prompt ever answered, that show that the model refuses whatever it is shown."""


@dataclass(slots=True)
class Refusals:
    """Members of one group that one juror refuses; shared by the juror's concurrent calls.

    A refused prompt costs its group every vote, so one member's text could veto a bad group. The search halves the
    members that were refused together until one is left, and confirms that one on its own, in about log2(n) prompts:

        {0 1 2 3 4 5 6 7} refused   {0 1 2 3} answered   {4 5} refused   {4} answered   {5} refused   -> member 5

    A model that refuses everything, or only texts together, is found out in a bounded number of prompts: nobody is
    blamed then.
    """

    group: int
    """Number of members of the group."""
    members: dict[int, str] = field(default_factory=dict[int, str])
    """Members whose text is refused, with the model's words."""
    everything: bool = False
    """Whether the juror has refused all that it was shown."""
    _cleared: set[int] = field(default_factory=set[int])
    """Members of a prompt that was answered."""
    _fruitless: bool = False
    """Whether a search found no member that is refused on its own."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def answered(self, shown: Sequence[int]) -> None:
        """A prompt that showed these members was answered."""
        self._cleared.update(shown)

    async def narrow_down(self, shown: Sequence[int], ask: Ask) -> bool:
        """Whether a refused member is known among `shown`, which were refused together; searches for one if not."""
        async with self._lock:
            is_known = bool(self.members.keys() & set(shown))  # perhaps found while this call waited
            if self.everything or is_known or self._fruitless:
                return is_known and not self.everything
            return await self._search(shown, ask)

    async def _search(self, shown: Sequence[int], ask: Ask) -> bool:
        suspects = [member for member in sorted(shown) if member not in self._cleared]
        confirmed: Sequence[int] = ()
        while len(suspects) > 1:
            half = suspects[: len(suspects) // 2]
            match await self._outcome(half, ask):
                case "answered":
                    suspects = suspects[len(half) :]
                case "refused":
                    suspects = confirmed = half
                case "failed":
                    return False
        if suspects and suspects != confirmed and await self._outcome(suspects, ask) == "failed":
            return False
        self._fruitless = not self.members.keys() & set(suspects)
        if self._fruitless:
            return False
        if not self._cleared:  # perhaps the model refuses everything: further members one by one until one is answered
            others = [member for member in range(self.group) if member not in self.members][: _ALONE - 1]
            for member in others:
                if await self._outcome([member], ask) != "refused":
                    return True
            self.everything = True
        return not self.everything

    async def _outcome(self, members: Sequence[int], ask: Ask) -> Outcome:
        ballot = await ask(tuple(members))
        if ballot.scores is not None:
            self.answered(members)
            return "answered"
        if not ballot.refusal:
            return "failed"
        if len(members) == 1:
            self.members[members[0]] = ballot.refusal
        return "refused"


@dataclass(frozen=True, slots=True)
class Poll:
    """The jurors and what they are asked."""

    jurors: Sequence[Juror]
    clients: Sequence[Sequence[Client]]
    """The models of each juror, the fallbacks after the first."""
    rubric: Rubric
    content_retries: int
    position_bias: dict[int, PositionBias]
    """Number of members shown -> position bias; updated with every ballot."""
    cache: CacheName = "auto"
    """Whether the first call of each juror goes ahead."""
    mode: Groupwise = field(default_factory=Groupwise)

    async def poll(self, group: CanonicalGroup, schedule: Schedule, seed: str) -> list[Ballot]:
        """Requests one ballot per scheduled call concurrently; lost ones are among them, with their problem.

        All calls have the same markers, so that their prompts begin alike. Only an order that comes again, such as that
        of a pair, has other markers: a cassette would answer the same prompt with the same reply.
        """
        repetitions = Counter[tuple[int, ...]]()
        prompts: list[GroupPrompts] = []
        calls: list[asyncio.Task[Ballot]] = []
        async with asyncio.TaskGroup() as tasks:
            jurors = zip(self.jurors, self.clients, schedule, strict=True)
            for number, (juror, clients, calls_shown) in enumerate(jurors):
                refusals = Refusals(len(group.members))
                caching: dict[int, _PromptCaching] = {}
                for shown in calls_shown:
                    repetition = repetitions[shown]
                    repetitions[shown] += 1
                    if repetition == len(prompts):
                        made = off_loop_if_long(group.characters, self._prompts, group, f"{seed}/{repetition}")
                        prompts.append(await made)
                    if repetition not in caching:
                        caching[repetition] = _PromptCaching(self.cache, calls_shown, len(calls))
                    ballot = Ballot(len(calls), shown, clients[0].name, number, juror.weight)
                    call = _Call(self, ballot, group, prompts[repetition], clients, caching[repetition])
                    calls.append(tasks.create_task(call.answer(refusals)))
        return [call.result() for call in calls]

    def _prompts(self, group: CanonicalGroup, seed: str) -> GroupPrompts:
        markers = draw_markers(group, Random(f"{seed}/markers"))
        request, highest = partial(self.mode.request, self.rubric), self.mode.highest
        return GroupPrompts(group, markers, self.rubric, request, highest=highest, turns=self.mode.states)

    def max_shown(self, group: CanonicalGroup) -> int:
        """Number of members that fit one prompt of every model, at most `LARGEST_WHOLE`."""
        entries = LARGEST_WHOLE * max(1, len(self.rubric.criteria))
        most = self.mode.most_scores
        if most is not None and most < entries:
            return max(2, most * LARGEST_WHOLE // entries)
        room = min(client.room(entries) for client in chain.from_iterable(self.clients))
        text_bytes = sum(len(text.encode(errors="replace")) + _TEXT_OVERHEAD_BYTES for text in set(group.texts))
        text_bytes += IMAGE_TOKENS * len(group.images)
        if text_bytes < room - _INSTRUCTION_BYTES:
            return LARGEST_WHOLE
        return max_members_per_prompt(group, self.rubric, partial(self.mode.request, self.rubric), room)


@dataclass(frozen=True, slots=True)
class _Call:
    """One ballot that is asked for."""

    poll: Poll
    ballot: Ballot
    group: CanonicalGroup
    prompts: GroupPrompts
    clients: Sequence[Client]
    caching: "_PromptCaching"

    async def answer(self, refusals: Refusals) -> Ballot:
        try:
            await self._without_refused(refusals)
        finally:
            self.caching.ended(self.ballot.order)
        return self.ballot

    async def _without_refused(self, refusals: Refusals) -> None:
        """Asks for the ballot and, when it is refused because of some members' text, again without these members."""
        ballot = self.ballot
        scheduled, asked_again = ballot.shown, False

        async def ask(members: tuple[int, ...]) -> Ballot:
            trial = Ballot(ballot.order, members, ballot.model, ballot.juror, ballot.weight)
            await replace(self, ballot=trial)._with_fallbacks()
            ballot.add_costs(trial)
            return trial

        while True:
            if refusals.everything:
                words = next(iter(refusals.members.values()))
                ballot.shown, ballot.refused = scheduled, {}
                ballot.problem = f"the judge model refuses all that it is shown of this group: {words}"
                return
            ballot.refused = {member: refusals.members[member] for member in scheduled if member in refusals.members}
            ballot.shown = tuple(member for member in scheduled if member not in ballot.refused)
            if len(ballot.shown) < min(2, len(scheduled)):
                ballot.problem = "the judge model refuses the text of the members beside it"
                return
            await self._with_fallbacks()
            if ballot.scores is not None:
                refusals.answered(ballot.shown)
            if not ballot.refusal:
                return
            if await refusals.narrow_down(ballot.shown, ask) or refusals.everything:
                continue
            if asked_again:  # a refusal by chance would hardly come twice
                ballot.problem = f"the judge model refuses these texts together, but none alone: {ballot.refusal}"
                return
            asked_again = True

    async def _with_fallbacks(self) -> None:
        """Asks the juror's models in turn until one fills the ballot."""
        self.ballot.refusal = ""
        for client in self.clients:
            self.ballot.model = client.name
            await self._ask_model(client)
            if self.ballot.scores is not None:
                self.ballot.refusal = ""
                return

    async def _ask_model(self, client: Client) -> None:
        """Asks one model until a reply can be read; with a shorter prompt when the model refuses it as too long, and
        with the invalid reply and its problem, `content_retries` times."""
        ballot, mode = self.ballot, self.poll.mode
        fittings, retries = _MAX_FITTINGS, self.poll.content_retries if mode.can_be_repaired else 0
        request: _Request | None = None
        refusal = ""
        while retries >= 0:
            if request is None:
                if not fittings or (request := await self._fit(client)) is None:
                    return
                fittings -= 1
            ballot.calls += 1
            try:
                reply = await request.send(client)
            except ContextError as error:
                ballot.problem = error.message
                if isinstance(error, PromptCutError):
                    ballot.replies.append(error.reply)
                else:
                    ballot.calls -= 1  # a refused prompt is not judged, and costs nothing
                client.shrink(request.room, count_message_tokens(request.prompt), self._entries, error.limit)
                request = None
                continue
            except LlmError as error:
                if isinstance(error, NotAskedError):
                    ballot.calls -= 1
                else:
                    ballot.free_calls += not error.may_be_paid
                ballot.problem = ". ".join(filter(None, (error.message.rstrip("."), error.remedy)))
                if isinstance(error, RefusedError):
                    ballot.refusal = error.message
                return
            ballot.replies.append(reply)
            if reply.finish_reason == CONTENT_FILTER:
                ballot.refusal = ballot.problem = filtered(client.name, reply.text)
                return
            try:
                return self._fill(request, reply, request.read(reply))
            except VerdictError as error:
                cut_off = "it was cut off at the token limit (max_tokens); " if reply.finish_reason == "length" else ""
                problem = cut_off + error.message
            ballot.problem = f"the reply cannot be used: {name_attempts(problem, request.indices)}"
            refusal = filtered(client.name, reply.text) if is_refusal_text(reply.text) else ""
            ballot.prompt_ids.append(template_id("judge/repair.j2"))
            ids = ids_to_score(self.poll.rubric, list(request.indices))
            request.send_back(reply, render("judge/repair.j2", problem=problem, labels=ids, states=mode.states))
            retries -= 1
        ballot.refusal = refusal

    async def _fit(self, client: Client) -> _Request | None:
        """The request with a prompt that fits the model's context; None when there is no room for one."""
        ballot, mode, rubric = self.ballot, self.poll.mode, self.poll.rubric
        room = client.room(self._entries)
        try:
            prompt = await off_loop_if_long(self.group.characters, self.prompts.fit, ballot.shown, room)
        except ContextTooSmallError as error:
            ballot.problem, ballot.no_room = error.message, error
            return None
        ballot.no_room, ballot.shortened = None, prompt.shortened
        ballot.prompt_ids += map(template_id, mode.templates(rubric))
        indices = {self.prompts.markers.labels[m]: self.group.members[m].indices for m in ballot.shown}
        prefix, labels = await self.caching.prefix(ballot.order, prompt, client), list(indices)

        def read(text: str, cut_off: bool) -> Verdict:
            return mode.read(text, rubric, labels, cut_off=cut_off, turns=prompt.turns)

        return _Request(prompt.messages, indices, room, prefix, mode.schema(rubric, labels), read)

    @property
    def _entries(self) -> int:
        """Scores that a reply holds."""
        return len(self.ballot.shown) * max(1, len(self.poll.rubric.criteria))

    def _fill(self, request: _Request, reply: Reply, verdict: Verdict) -> None:
        """Takes the scores, with attempts named by number in place of labels, and what they tell of position bias."""
        ballot = self.ballot
        by_label = dict(zip(request.indices, ballot.shown, strict=True))
        ballot.scores = {}
        for label, member in by_label.items():
            if scored := verdict.scores.get(label):
                named = name_attempts(scored.explanation, request.indices)
                ballot.scores[member] = scored if named is scored.explanation else replace(scored, explanation=named)
        ballot.unread = {by_label[label]: problem for label, problem in verdict.unread.items()}
        ballot.lost_states = {by_label[label]: problem for label, problem in verdict.lost_states.items()}
        ballot.reply_key = reply.key
        ballot.repairs = reply.repairs + verdict.repairs
        if not ballot.unread:
            bias = self.poll.position_bias.setdefault(len(ballot.shown), PositionBias())
            bias.add([ballot.scores[member].score for member in ballot.shown])


_tokens_of_instructions = lru_cache(256)(count_tokens)


class _PromptCaching:
    """Use of the server's prompt cache by a juror's calls on one group.

    All orders of a group have the same beginning, which a server charges at a tenth to a half of the price when it is
    in its cache, and it is there when the first request is being answered. So the first call goes ahead, and the others
    follow when it is answered, or a second after it was sent.
    """

    def __init__(self, cache: CacheName, calls_shown: Sequence[tuple[int, ...]], first: int) -> None:
        """`calls_shown`: the members that each of the juror's calls shows. `first`: the number of the first call."""
        self._cache: CacheName = cache if len(calls_shown) > 1 else "off"
        self._same_members = len(set(map(frozenset, calls_shown))) == 1
        self._first = first
        self._warm = asyncio.Event()
        """Set when the others may be sent."""
        self._long_enough: dict[tuple[str, int], bool] = {}
        """Whether a beginning of so many characters is cached, by model: it is counted once for all calls."""

    def ended(self, number: int) -> None:
        """The call of this number is over, whatever came of it."""
        if number == self._first:
            self._warm.set()

    async def prefix(self, number: int, prompt: Prompt, client: Client) -> CachedPrefix:
        """The beginning that the call shares with the juror's other calls. Returns when it may be sent."""
        if self._cache == "off":
            return NO_PREFIX
        characters = self._cached_characters(prompt, client)
        if number == self._first:
            sent = partial(asyncio.get_running_loop().call_later, WARM_SECONDS, self._warm.set)
            return CachedPrefix(len(prompt.messages) - 1, characters, sent)
        if characters or self._cache == "lead":
            await self._warm.wait()
        return CachedPrefix(len(prompt.messages) - 1, characters)

    def _cached_characters(self, prompt: Prompt, client: Client) -> int:
        """Characters of the last message that the model's server keeps in its cache, as far as LiteLLM knows."""
        if not caches_prompts(client.model):
            return 0
        characters = prompt.same_in_orders
        if not self._same_members:  # calls with other members are shortened to other lengths
            characters = 0 if prompt.shortened else prompt.same_in_group
        key = client.name, characters
        if key not in self._long_enough:
            *before, last = (text_of(message) for message in prompt.messages)
            needed = min_cached_tokens(client.model) - sum(map(_tokens_of_instructions, before))
            shared = last[:characters]  # a token has at least a byte
            self._long_enough[key] = len(shared.encode()) >= needed <= count_tokens(shared, stop_at=needed)
        return characters if self._long_enough[key] else 0


_NAMED = (
    r"(?P<noun>(?<![^\W_])(?:trajector(?:y|ies)|attempts?|candidates?|rollouts?|responses?|labels?|ids?)"
    r"[ _#:-]{{1,2}})?(?P<open>[\[(\"'`‘“]?)"
    r"(?<![A-Za-z0-9])(?P<label>{labels})[a-z]?(?![A-Za-z0-9])(?P<close>[\])\"'`’”]?)"
)
"""A label, or the id of a criterion, as a whole word, and what belongs to it."""


def name_attempts(text: str, indices: Mapping[str, Sequence[int]]) -> str:
    """The text with each label, and the id of each criterion, replaced by the numbers of its attempts, from 1: labels
    are random and of one call.

        name_attempts("W7QX looked first; trajectory B3KD guessed.", {"W7QX": (1,), "B3KD": (0, 2)})
        -> "Attempt 2 looked first; attempts 1 and 3 guessed."

    `indices`: by label, the member's trajectories in the group; none = a reference trajectory.
    """
    folded = text.casefold()
    if not any(label.casefold() in folded for label in indices):
        return text  # most explanations name none, and compiling the pattern takes a millisecond

    def named(found: re.Match[str]) -> str:
        name = _name(indices[found["label"].casefold().upper()])
        before = text[max(0, found.start() - 9) : found.start()].rstrip(" *_")[-1:]
        if found["noun"][0].isupper() if found["noun"] else before in ("", ".", "!", "?", "\n"):
            name = name[0].upper() + name[1:]
        return name if found["open"] and found["close"] else found["open"] + name + found["close"]

    return re.sub(_NAMED.format(labels="|".join(indices)), named, text, flags=re.IGNORECASE)


def _name(indices: Sequence[int]) -> str:
    numbers = [str(index + 1) for index in sorted(indices)]
    if not numbers:
        return "a reference attempt"
    if len(numbers) == 1:
        return f"attempt {numbers[0]}"
    return f"attempts {', '.join(numbers[:-1])} and {numbers[-1]}"
