"""The judge: a group in, a new group with a score for every member out.

Every juror sees every different member in each of its orders, in a large group block by block, or two by two; what
the votes come to is the reward. A call that fails costs its votes, not the group, and a juror whose calls all fail
abstains: a member without votes, or without a quorum, is unscored, with the reason, and never gets a number.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import Literal, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import gavel.judge.offline  # noqa: F401 - makes the stand-in known by name
from gavel.judge.errors import ContextTooSmallError, JudgeError, llm_errors_as_judge_errors
from gavel.judge.panel.aggregate import anchored, groupwise, pairwise
from gavel.judge.panel.anchors import Anchor, checked, seat
from gavel.judge.panel.bradley_terry import pairings
from gavel.judge.panel.equating import LARGEST, showings
from gavel.judge.panel.judgements import Ballot, judge_group, judge_members, with_judgements
from gavel.judge.panel.juror import Models, jury
from gavel.judge.panel.schedule import SlotMeans
from gavel.judge.prompt.canonical import CanonicalGroup, canonicalize
from gavel.judge.prompt.flags import apply_flags, validate_caps, with_flags
from gavel.judge.prompt.messages import count_message_tokens, fit_messages, max_members_per_prompt, template_names
from gavel.judge.prompt.transcript import PromptMarkers, draw_markers
from gavel.judge.reply.criteria import ids_to_score, read_scores
from gavel.judge.reply.verdict import VerdictError, reply_schema
from gavel.judge.rubric import Rubric
from gavel.llm.budget import Budget
from gavel.llm.cassette import Cassette
from gavel.llm.client import Client
from gavel.llm.errors import ContextError, LlmError, NotAskedError
from gavel.llm.prices import Prices, checked_prices, prices_from_environment
from gavel.llm.rate_limits import Limits, Places
from gavel.llm.types import Message
from gavel.prompts import template_id
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, Judgement
from gavel.scenarios.trajectory import Trajectory

_LIMITS = Limits()
_INSTRUCTIONS, _LINE = 8_000, 40
"""Bytes of a prompt around its texts, and around each of them: more than usual, to save counting tokens."""
_ECHO = 4_000
"""Characters of a reply that cannot be used which its judge is shown again."""
_AHEAD = 2
"""Groups that are read and asked about for each call that may run. More would fill memory with prompts that wait, and
keep the first call waiting until all groups are read."""
_FITTINGS = 5
"""How often a prompt is made to fit a context whose size is not known."""
_LONG = 200_000
"""Characters of a group that take so long to read, 0.1 s and more, that other calls should not wait for it."""

Given = ParamSpec("Given")
Made = TypeVar("Made")


class Judge:
    """Scores groups of trajectories with one or more judge models."""

    def __init__(
        self,
        models: Models | None = None,
        *,
        rubric: Rubric | str | None = None,
        mode: Literal["groupwise", "pairwise"] = "groupwise",
        anchors: Iterable[Anchor] = (),
        orders: int = 2,
        quorum: float = 0.0,
        caps: Mapping[str, float] | None = None,
        content_retries: int = 2,
        concurrency: int = _LIMITS.concurrency,
        timeout: float = _LIMITS.timeout,
        deadline: float = _LIMITS.deadline,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        budget: Budget | None = None,
        cassette: Cassette | str | Path | None = None,
        prices: Prices | None = None,
        seed: int = 0,
    ) -> None:
        """`models`: a LiteLLM id, an async callable, or a list of these or `Juror`s; None = `GAVEL_JUDGE_MODEL`.

        `mode`: whether a call shows the group, or two members of it. `anchors`: trajectories with fixed scores, shown
        in every call, so that all groups are scored on their scale. `orders`: calls for a group and juror; for each
        member of a group above 10, which is shown in blocks of at most 8, at least 2 (without anchors); for each pair
        in the mode "pairwise", which compares a member with 8 others, or with all where they are fewer. `quorum`: the
        share of the jury's weight, 0 to 1, that must have voted for a member. `caps`: the highest score, 0 to 1, of a
        member with a flag ("empty", "contentless", "addresses the judge", "a tool's output addresses the judge");
        None = flags are shown and recorded only.
        `content_retries`: how often a reply that cannot be used is asked for again. `concurrency`: calls to one model
        at a time; `timeout`, `deadline`: seconds for an attempt, for a call. `requests_per_minute`,
        `tokens_per_minute`: to one model. `budget`: for this judge and all others that are given it. `cassette`:
        where replies are kept, so that none is paid for twice; a path or a `Cassette`. `prices`: USD per million
        prompt and completion tokens; None = `GAVEL_PRICES`.
        """
        if orders < 1 or content_retries < 0:
            raise JudgeError(f"a judge needs orders >= 1 and content_retries >= 0, not {orders}, {content_retries}.")
        if not 0 <= quorum <= 1:
            raise JudgeError(f"a quorum is a share from 0 to 1, not {quorum}.")
        if mode not in ("groupwise", "pairwise"):
            raise JudgeError(f"there is no mode {mode!r} of judging.", 'There are "groupwise" and "pairwise".')
        self.anchors = checked(anchors)
        if self.anchors and mode == "pairwise":
            raise JudgeError(
                "pairs say who wins, not on what scale, so anchors cannot be used with them.",
                'Leave out anchors, or take mode="groupwise".',
            )
        self.mode = "anchored" if self.anchors else mode
        """What the judgements are told to be: "groupwise", "pairwise" or "anchored"."""
        self.rubric = Rubric.of(rubric)
        self.jurors = jury(models)
        self.orders = orders
        self.content_retries = content_retries
        self.quorum = quorum
        self.caps = validate_caps(caps)
        self.seed = seed
        self.slots: dict[int, SlotMeans] = {}
        """What each place has gained so far, by the number of members shown: how biased by position the judge is."""
        self.budget = budget or Budget()
        self.cassette = Cassette(cassette) if isinstance(cassette, str | Path) else cassette
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, Places] = WeakKeyDictionary()
        self._most_open = _AHEAD * concurrency
        with llm_errors_as_judge_errors():
            limits = Limits(concurrency, timeout, deadline, _LIMITS.attempts, requests_per_minute, tokens_per_minute)
            prices = prices_from_environment() if prices is None else checked_prices(prices)
        self._clients = [
            [
                Client(model, juror.params, limits, prices, self.budget, self.cassette, juror.context)
                for model in juror.models
            ]
            for juror in self.jurors
        ]

    @property
    def names(self) -> list[str]:
        """The models that may be asked, the fallbacks included; a callable goes by its own name."""
        return [client.name for client in chain.from_iterable(self._clients)]

    def check(self) -> None:
        """Raises `JudgeError` for a model that no provider serves, for a missing API key, and for a budget in dollars
        that cannot be kept because a model's price is not known; `__cause__` says which."""
        with llm_errors_as_judge_errors():
            for client in chain.from_iterable(self._clients):
                client.check()

    async def score(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """A copy of the group with rewards and judgements; a pending group is run first.

        Raises `JudgeError` for a group without trajectories, for a trajectory without messages that has not failed,
        for a juror that cannot be asked (see `check`), and when no juror has room for two members. Whatever else goes
        wrong is told in the judgements.
        """
        started = time.monotonic()
        if group.pending:
            await group
        if not group.trajectories:
            raise JudgeError(f"the group has no trajectories to judge ({len(group.exceptions)} rollouts failed).")
        attempts = {i: t for i, t in enumerate(group.trajectories) if t.status != "failed"}
        if silent := [i for i, t in attempts.items() if not any(h.messages_and_choices for h in t.histories())]:
            raise JudgeError(
                f"trajectory {silent[0]} of the group (counted from 0) has no messages.",
                'Leave it out, or mark it as failed: Trajectory(status="failed", status_reason=…).',
            )
        places = self._open.setdefault(asyncio.get_running_loop(), Places())
        async with places.one_of(self._most_open):
            scored, whole = await self._judge(group, attempts)
        whole.seconds = time.monotonic() - started
        return with_judgements(group, scored, whole)

    async def _judge(
        self, group: TrajectoryGroup, attempts: Mapping[int, Trajectory]
    ) -> tuple[list[Judgement], GroupJudgement]:
        """Of the group's trajectories, of which `attempts`, by their places, have not failed."""
        failures = canonicalize({i: t for i, t in enumerate(group.trajectories) if i not in attempts})
        failed = await _read(failures, with_flags, failures)
        seated, fixed = seat(attempts, self.anchors)
        canonical = await _read(seated, with_flags, seated)
        ballots: list[Ballot] = []
        if len(canonical.members) > 1:
            self.check()
            ballots = await self._poll(canonical, fixed)
            if all(ballot.no_room and not ballot.calls for ballot in ballots):
                raise next(ballot.no_room for ballot in ballots if ballot.no_room)
        combine = {"groupwise": groupwise, "pairwise": pairwise, "anchored": partial(anchored, fixed=fixed)}[self.mode]
        members = judge_members(group.trajectories, canonical, ballots, self.quorum, combine)
        for part in (canonical, failed):
            apply_flags(members, part, self.caps)
        whole = judge_group(members, canonical, ballots)
        whole.mode = self.mode
        whole.warnings += self._position_warnings({len(ballot.row) for ballot in ballots})
        whole.models = self.names
        whole.prompt_ids = [self.rubric.id, *dict.fromkeys(i for ballot in ballots for i in ballot.prompt_ids)]
        whole.seed = self.seed
        return members, whole

    def _position_warnings(self, sizes: set[int]) -> list[str]:
        """A sentence for each number of members shown at which places surely matter to the judge."""
        biased = {size: slots for size in sorted(sizes) if (slots := self.slots.get(size)) and slots.is_biased}
        return [
            f"places matter to this judge: of {size} members shown, the last has gained {2 * slots.slope:+.2f} over "
            f"the first ({slots.ballots} ballots); an even number of orders balances that"
            for size, slots in biased.items()
        ]

    async def _poll(self, group: CanonicalGroup, fixed: Mapping[int, float]) -> list[Ballot]:
        """One ballot for each order of each juror, all asked for at once."""
        counts = [juror.orders or self.orders for juror in self.jurors]
        seed = f"{self.seed}/{group.digest}"
        size = len(group.members)
        if self.mode == "pairwise":
            shown = pairings(size, counts, seed)
        else:
            shown = showings(size, counts, seed, fixed, self._most_shown(group))
        calls: list[asyncio.Task[Ballot]] = []
        async with asyncio.TaskGroup() as tasks:
            for number, rows in enumerate(shown):
                juror, clients = self.jurors[number], self._clients[number]
                for row in rows:
                    marks = await _read(group, draw_markers, group, Random(f"{seed}/{len(calls)}"))
                    ballot = Ballot(len(calls), row, clients[0].name, number, juror.weight)
                    calls.append(tasks.create_task(self._cast(ballot, group, marks, clients)))
        return [call.result() for call in calls]

    def _most_shown(self, group: CanonicalGroup) -> int:
        """How many members all models have room for in one prompt."""
        room = min(
            client.room(LARGEST * max(1, len(self.rubric.criteria))) for client in chain.from_iterable(self._clients)
        )
        if sum(len(text.encode(errors="replace")) + _LINE for text in set(group.texts)) < room - _INSTRUCTIONS:
            return LARGEST
        return max_members_per_prompt(group, self.rubric, room)

    async def _cast(
        self, ballot: Ballot, group: CanonicalGroup, marks: PromptMarkers, clients: Sequence[Client]
    ) -> Ballot:
        """Fills the ballot by the first of the juror's models that can."""
        for client in clients:
            ballot.model = client.name
            await self._ask(ballot, group, marks, client)
            if ballot.scores is not None:
                break
        return ballot

    async def _ask(self, ballot: Ballot, group: CanonicalGroup, marks: PromptMarkers, client: Client) -> None:
        """Asks in as many tokens as the model has room for, and in fewer when it turns out to have less."""
        labels = [marks.labels[member] for member in ballot.row]
        entries = len(ids_to_score(self.rubric, labels))
        for _ in range(_FITTINGS):
            room = client.room(entries)
            try:
                made = await _read(group, fit_messages, group, ballot.row, marks, self.rubric, room)
                prompt, ballot.shortened = made
            except ContextTooSmallError as error:
                ballot.problem, ballot.no_room = error.message, error
                return
            ballot.no_room = None
            ballot.prompt_ids += map(template_id, template_names(self.rubric))
            try:
                return await self._fill(ballot, prompt, labels, marks, client)
            except ContextError as error:
                ballot.problem = error.message
                client.shrink(room, count_message_tokens(prompt), entries, error.limit)

    async def _fill(
        self, ballot: Ballot, prompt: list[Message], labels: list[str], marks: PromptMarkers, client: Client
    ) -> None:
        """Asks, reads the reply, and asks again for a reply that can be used."""
        ids = ids_to_score(self.rubric, labels)
        repair: list[Message] = []
        for _ in range(1 + self.content_retries):
            ballot.calls += 1
            try:
                reply = await client.ask(prompt + repair, reply_schema(ids))
            except ContextError:
                ballot.calls -= 1  # a prompt that is refused is not judged, nor paid for
                raise
            except LlmError as error:
                ballot.calls -= isinstance(error, NotAskedError)
                ballot.problem = error.message
                return
            ballot.replies.append(reply)
            try:
                verdict = read_scores(reply.text, self.rubric, labels)
            except VerdictError as error:
                cut_off = "it was cut off at the token limit; " if reply.finish_reason == "length" else ""
                problem = cut_off + error.message
                ballot.problem = f"the reply cannot be used: {problem}"
                words = ballot.render("judge/repair.j2", problem=problem, labels=ids)
                repair = [
                    {"role": "assistant", "content": reply.text.strip()[:_ECHO] or "(no reply)"},
                    {"role": "user", "content": words},
                ]
            else:
                ballot.scores = {member: verdict.scores[marks.labels[member]] for member in ballot.row}
                ballot.repairs = reply.repairs + verdict.repairs
                slots = self.slots.setdefault(len(labels), SlotMeans())
                slots.add([verdict.scores[label].score for label in labels])
                return


async def _read(group: CanonicalGroup, work: Callable[Given, Made], *given: Given.args, **named: Given.kwargs) -> Made:
    """What the work makes of the group's text; in a thread, while other calls go on, if there is much of it."""
    if group.characters > _LONG:
        return await asyncio.to_thread(work, *given, **named)
    return work(*given, **named)
