"""The judge: a group in, a new group with a score for every member out.

Every juror sees every different member in each of its orders, in a large group block by block, or two by two; what
the votes come to is the reward. A call that fails costs its votes, not the group, and a juror whose calls all fail
abstains: a member without votes, or without a quorum, is unscored, with the reason, and never gets a number.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import Literal

from judge.anchors import Anchor, checked, seat
from judge.ballot import SlotMeans
from judge.blocks import showings
from judge.budget import Budget
from judge.canonical import CanonicalGroup
from judge.cassette import Cassette
from judge.client import Client
from judge.combine import anchored, groupwise, pairwise
from judge.errors import JudgeError, NotAskedError
from judge.juror import Models, jury
from judge.limits import Limits
from judge.pairs import pairings
from judge.prices import Prices, prices_from_environment
from judge.result import Ballot, judge_group, judge_members, with_judgements
from judge.rubric import Rubric
from judge.transcript import Marks, draw_marks, render_transcripts, sanitise
from judge.verdict import VerdictError, read_verdict, reply_schema
from scenarios.trajectory import Message, TrajectoryGroup

_LIMITS = Limits()


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
        share of the jury's weight, 0 to 1, that must have voted for a member.
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
        self.seed = seed
        self.slots: dict[int, SlotMeans] = {}
        """What each place has gained so far, by the number of members shown."""
        self.budget = budget or Budget()
        self.cassette = Cassette(cassette) if isinstance(cassette, str | Path) else cassette
        limits = Limits(concurrency, timeout, deadline, _LIMITS.attempts, requests_per_minute, tokens_per_minute)
        prices = prices_from_environment() if prices is None else prices
        self._clients = [
            [Client(model, juror.params, limits, prices, self.budget, self.cassette) for model in juror.models]
            for juror in self.jurors
        ]

    @property
    def names(self) -> list[str]:
        """The models that may be asked, the fallbacks included; a callable goes by its own name."""
        return [client.name for client in chain.from_iterable(self._clients)]

    def check(self) -> None:
        """Raises `MissingKeyError` when a model cannot be asked for want of an API key, and `UnknownPriceError` when
        the budget in dollars cannot be kept for want of a price."""
        for client in chain.from_iterable(self._clients):
            client.check()

    async def score(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """A copy of the group with rewards and judgements; a pending group is run first.

        Raises `JudgeError` for a group without trajectories, and for a juror whose key is missing. Whatever else
        goes wrong is told in the judgements.
        """
        started = time.monotonic()
        if group.pending:
            await group
        if not group.trajectories:
            raise JudgeError(f"the group has no trajectories to judge ({len(group.exceptions)} rollouts failed).")
        acted = {i: t for i, t in enumerate(group.trajectories) if t.status != "failed"}
        canonical, fixed = seat(acted, self.anchors)
        ballots: list[Ballot] = []
        if len(canonical.members) > 1:
            self.check()
            ballots = await self._poll(canonical, fixed)
        combine = {"groupwise": groupwise, "pairwise": pairwise, "anchored": partial(anchored, fixed=fixed)}[self.mode]
        members = judge_members(group.trajectories, canonical, ballots, self.quorum, combine)
        whole = judge_group(members, canonical, ballots)
        whole.mode = self.mode
        whole.models = self.names
        whole.prompt_ids = [self.rubric.id, *dict.fromkeys(i for ballot in ballots for i in ballot.prompt_ids)]
        whole.seed = self.seed
        whole.seconds = time.monotonic() - started
        return with_judgements(group, members, whole)

    async def _poll(self, group: CanonicalGroup, fixed: Mapping[int, float]) -> list[Ballot]:
        """One ballot for each order of each juror, all asked for at once."""
        counts = [juror.orders or self.orders for juror in self.jurors]
        seed = f"{self.seed}/{group.digest}"
        size = len(group.members)
        shown = pairings(size, counts, seed) if self.mode == "pairwise" else showings(size, counts, seed, fixed)
        calls: list[asyncio.Task[Ballot]] = []
        async with asyncio.TaskGroup() as tasks:
            for number, rows in enumerate(shown):
                juror, clients = self.jurors[number], self._clients[number]
                for row in rows:
                    marks = draw_marks(group, Random(f"{seed}/{len(calls)}"))
                    ballot = Ballot(len(calls), row, clients[0].name, number, juror.weight)
                    calls.append(tasks.create_task(self._cast(ballot, group, marks, clients)))
        return [call.result() for call in calls]

    async def _cast(self, ballot: Ballot, group: CanonicalGroup, marks: Marks, clients: Sequence[Client]) -> Ballot:
        """Fills the ballot by the first of the juror's models that can."""
        labels = [marks.labels[member] for member in ballot.row]
        transcripts = render_transcripts(group, ballot.row, marks)
        prompt: list[Message] = [
            {"role": "system", "content": ballot.render("judge/system.j2", rubric=sanitise(self.rubric.text))},
            {"role": "user", "content": ballot.render("judge/group.j2", transcripts=transcripts, labels=labels)},
        ]
        for client in clients:
            ballot.model = client.name
            await self._fill(ballot, prompt, labels, marks, client)
            if ballot.scores is not None:
                break
        return ballot

    async def _fill(
        self, ballot: Ballot, prompt: list[Message], labels: list[str], marks: Marks, client: Client
    ) -> None:
        """Asks, reads the reply, and asks again for a reply that can be used."""
        repair: list[Message] = []
        for _ in range(1 + self.content_retries):
            ballot.calls += 1
            try:
                reply = await client.ask(prompt + repair, reply_schema(labels))
            except JudgeError as error:
                ballot.calls -= isinstance(error, NotAskedError)
                ballot.problem = error.message
                return
            ballot.replies.append(reply)
            try:
                verdict = read_verdict(reply.text, labels)
            except VerdictError as error:
                ballot.problem = f"the reply cannot be used: {error.message}"
                words = ballot.render("judge/repair.j2", problem=error.message, labels=labels)
                repair = [
                    {"role": "assistant", "content": reply.text.strip() or "(no reply)"},
                    {"role": "user", "content": words},
                ]
            else:
                ballot.scores = {member: verdict.scores[marks.labels[member]] for member in ballot.row}
                ballot.repairs = reply.repairs + verdict.repairs
                slots = self.slots.setdefault(len(labels), SlotMeans())
                slots.add([verdict.scores[label].score for label in labels])
                return
