"""The judge: scores a group of trajectories, and returns a new group with a score for every member.

    judge = Judge("openai/gpt-5-mini", rubric="Solve the task in few steps.", orders=2)
    judged = await judge.score(group)
    [trajectory.reward for trajectory in judged]        [0.9, 0.2, None]

Every juror sees every distinct member in each of its orders, as the mode schedules it; the votes are aggregated to the
reward. A failed call costs its votes, not the group, and a juror whose calls all fail abstains. A member without votes,
or without a quorum, is unscored with a reason; it never gets a number. Which loop retries what: panel/polling.py.
"""

import asyncio
import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Literal, get_args
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter
from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from gavel.base.text import counted
from gavel.judge.errors import JudgeError, as_judge_error, llm_errors_as_judge_errors
from gavel.judge.offline import stand_in
from gavel.judge.panel.anchors import Anchor, check_anchors
from gavel.judge.panel.ballot import Ballot
from gavel.judge.panel.judgements import judge_group, judge_members
from gavel.judge.panel.juror import Models, jury
from gavel.judge.panel.modes import ModeName, choose_mode
from gavel.judge.panel.polling import Poll
from gavel.judge.panel.position_bias import PositionBias, bias_warnings
from gavel.judge.panel.probes import probe_all
from gavel.judge.panel.progress import Progress
from gavel.judge.panel.prompt_caching import CacheName
from gavel.judge.panel.served_models import ServedModels
from gavel.judge.panel.shown_attempts import read_attempts
from gavel.judge.panel.standard_errors import NoisePrior
from gavel.judge.panel.thread_offload import characters_of, off_loop_if_long
from gavel.judge.prompt.canonical_group import CanonicalGroup, canonicalize, with_reference
from gavel.judge.prompt.content_policies import AlonePolicy, ImagePolicy, UnseenPolicy, checked_choice
from gavel.judge.prompt.flags import apply_flags, validate_caps, with_flags
from gavel.judge.prompt.redaction import redaction
from gavel.judge.prompt.shown_content import Redact, View
from gavel.judge.rubric import Rubric
from gavel.llm.budget import Budget
from gavel.llm.cassette import Cassette
from gavel.llm.client import Client
from gavel.llm.loop_turns import next_turn
from gavel.llm.prices import Prices, checked_prices, prices_from_environment
from gavel.llm.probe import Probe
from gavel.llm.providers import ImageSupport, image_support
from gavel.llm.rate_limits import Activity, Limits
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judged_copy import with_judgements
from gavel.scenarios.judgement import GroupJudgement, Judgement
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.truth import truth_of

_LIMITS = Limits()
_PREFETCH = 2
"""Groups prepared per concurrent call (prefetch factor). More would fill memory with waiting prompts, and delay the
first call until all groups are read."""


class Judge:
    """Scores groups of trajectories with one or more judge models."""

    def __init__(
        self,
        models: Models | None = None,
        *,
        rubric: Rubric | str | None = None,
        mode: ModeName = "groupwise",
        anchors: Iterable[Anchor] = (),
        orders: int = 2,
        quorum: float = 0.0,
        caps: Mapping[str, float] | None = None,
        unseen: UnseenPolicy = "unscored",
        images: ImagePolicy = "auto",
        alone: AlonePolicy = "unscored",
        redact: Literal["secrets"] | Redact | None = None,
        content_retries: int = 2,
        cache: CacheName = "auto",
        concurrency: int = _LIMITS.concurrency,
        timeout: float = _LIMITS.timeout,
        deadline: float = _LIMITS.deadline,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        budget: Budget | None = None,
        cassette: Cassette | str | Path | None = None,
        prices: Prices | None = None,
        seed: int = 0,
        noise_prior: NoisePrior | None = None,
    ) -> None:
        """`models`: a LiteLLM id, an async callable, or a list of these or `Juror`s; None = `GAVEL_JUDGE_MODEL`.

        `mode`: whether a call shows the group, or two members of it ("pairwise"), and whether scores are said or read
        from probabilities ("decisions": of a decision model; "readout": of a digit's tokens). `anchors`: trajectories
        with fixed scores, shown in every call, which put the scores of all groups on their scale. `orders`: calls per
        group and juror; per member of a group above 10, which is shown in blocks of at most 8, at least 2 (without
        anchors); per pair in
        the mode "pairwise", which compares a member with 8 others, or with all where they are fewer. `quorum`: the
        share of the jury's weight, 0 to 1, that must have voted for a member. `caps`: the highest score, 0 to 1, of a
        member with a flag ("empty", "contentless", "addresses the judge", "a tool's output addresses the judge",
        "unseen content"); None = flags are shown and recorded only. `unseen`: a member with content that the judge is
        not shown (audio, a file, an unknown block, an image for a judge that sees none) is "unscored", or scored with
        the "flag". `images`: "auto" sends them when LiteLLM knows that every judge model sees them, "send" always,
        "flag" never; they are unseen content then. `alone`: a group of one distinct attempt is "unscored", or "scored"
        by itself. `redact`: what is done to all text of trajectories and tools before it leaves: a function of it, or
        "secrets" for keys, e-mail addresses and card numbers; images are sent as they are, or not at all.
        `content_retries`: max repair requests for an invalid reply. `cache`: whether a juror's first call on a group
        goes ahead and the others follow when it is answered, or after a second, so that they find the beginning of the
        prompt in the server's cache: "auto" where LiteLLM knows that the model caches prompts and the beginning is long
        enough, "lead" always, "off" never. `concurrency`: max concurrent calls to one model;
        `timeout`, `deadline`: seconds per attempt, per call. `requests_per_minute`, `tokens_per_minute`: per model.
        `budget`: may be shared with other judges. `cassette`: stores replies, so that none is paid for twice; a path
        or a `Cassette`. `prices`: USD per million prompt and completion tokens, and if you like a third number per
        million cached prompt tokens; None = `GAVEL_PRICES`. `noise_prior`: the noise of this judge's votes in other
        groups (`gavel.judge.audit.noise_prior.fit_noise_prior`), with which standard errors are estimated; None = from
        the group's own votes.
        """
        if orders < 1 or content_retries < 0:
            raise JudgeError(f"a judge needs orders >= 1 and content_retries >= 0, not {orders}, {content_retries}.")
        if not 0 <= quorum <= 1:
            raise JudgeError(f"a quorum is a share from 0 to 1, not {quorum}.")
        self.anchors = check_anchors(anchors)
        self._mode = choose_mode(mode, has_anchors=bool(self.anchors))
        self.mode = self._mode.name
        """Stored in the judgements: "groupwise", "anchored", "pairwise", "decisions" or "readout"."""
        self.rubric = Rubric.of(rubric)
        self.jurors = jury(models)
        self.orders = orders
        self.content_retries = content_retries
        if cache not in get_args(CacheName):
            raise JudgeError(f"there is no cache {cache!r}.", 'There are "auto", "lead" and "off".')
        self.cache: CacheName = cache
        self.quorum = quorum
        self.caps = validate_caps(caps)
        self.seed = seed
        self.noise_prior = noise_prior
        self.unseen: UnseenPolicy = checked_choice("unseen", unseen, UnseenPolicy)
        self.images: ImagePolicy = checked_choice("images", images, ImagePolicy)
        self.alone: AlonePolicy = checked_choice("alone", alone, AlonePolicy)
        self._redact = redaction(redact)
        self._served_models = ServedModels()
        self.position_bias: dict[int, PositionBias] = {}
        """The judge's position bias so far, by number of members shown."""
        self.budget = budget or Budget()
        self.activity = Activity()
        """What its calls wait for now."""
        self.cassette = Cassette(cassette) if isinstance(cassette, str | Path) else cassette
        self._prepared_groups: WeakKeyDictionary[asyncio.AbstractEventLoop, CapacityLimiter] = WeakKeyDictionary()
        self._max_prepared = _PREFETCH * concurrency
        with llm_errors_as_judge_errors():
            limits = Limits(concurrency, timeout, deadline, requests_per_minute, tokens_per_minute)
            prices = prices_from_environment() if prices is None else checked_prices(prices)
        form, shared = self._mode.form, (prices, self.budget, self.cassette)
        params = [{**form.params, **juror.params} for juror in self.jurors]
        self._clients = [
            [
                Client(
                    model,
                    params[number],
                    replace(limits, deadline=deadline / len(juror.models)),
                    *shared,
                    juror.context,
                    self.activity,
                    wire=form.wire,
                    has_fallback=model is not juror.models[-1],
                )
                for model in juror.models
            ]
            for number, juror in enumerate(self.jurors)
        ]

    @property
    def names(self) -> list[str]:
        """The models that may be asked, the fallbacks included; a callable goes by its own name."""
        return [client.name for client in chain.from_iterable(self._clients)]

    @property
    def settings(self) -> dict[str, JsonValue]:
        """What may change a score: models, rubric and whatever is decided here; not what only calls take or cost.

        Two judgements with equal settings may stand in one file. Parameters that hold keys are left out.
        """
        return {
            "models": list[JsonValue](self.names),
            "weights": [juror.weight for juror in self.jurors],
            "orders": [juror.orders or self.orders for juror in self.jurors],
            "params": [to_jsonable_python(juror.public_params, fallback=str) for juror in self.jurors],
            "rubric": self.rubric.id,
            "mode": self.mode,
            "anchors": [anchor.id for anchor in self.anchors],
            "quorum": self.quorum,
            "caps": dict[str, JsonValue](self.caps),
            "unseen": self.unseen,
            "images": self.images,
            "alone": self.alone,
            "redact": getattr(self._redact, "__qualname__", None if self._redact is None else "a function"),
            "content_retries": self.content_retries,
            "seed": self.seed,
            "noise_prior": self.noise_prior and self.noise_prior.model_dump(),
        }

    def check(self) -> None:
        """Raises `JudgeError` for a model that no provider serves, for a missing API key, for a budget in dollars that
        cannot be kept because a model's price is not known, and for a cassette that cannot be used; `__cause__` says
        which."""
        with llm_errors_as_judge_errors():
            for client in chain.from_iterable(self._clients):
                client.check()

    def probe_when_asked(self) -> None:
        """Puts the question of `probe` before each model's first request that the cassette cannot answer.

        A run that is replayed whole sends nothing. When no model of a juror answers it, `score` raises `JudgeError`.
        """
        for client in chain.from_iterable(self._clients):
            client.probe_when_asked()

    async def probe(self, *, replayed: bool = True) -> list[Probe]:
        """Asks every model one cheap question before the first group; callables and local models are not asked.

        Shows that key, model, credit and parameters are right, and which reply format the endpoint takes. Raises
        `JudgeError` when no model of a juror answers; a fallback that does not is in the result, with its problem.
        Without `replayed`, models that have replies on the cassette are asked as by `probe_when_asked`.
        """
        self.check()
        return await probe_all(self._clients, replayed=replayed)

    def rehearsal(self, stand_in: Callable[[Client], Client]) -> "Judge":
        """A judge of the same settings that asks `stand_in` of each juror's first client instead."""
        other = copy.copy(self)
        other.position_bias = {}
        other._clients = [[stand_in(clients[0])] for clients in self._clients]
        return other

    def with_rubric(self, rubric: Rubric | str) -> "Judge":
        """A judge of the same models, limits, budget and cassette that scores by another rubric."""
        other = copy.copy(self)
        other.position_bias, other.rubric = {}, Rubric.of(rubric)
        return other

    def without_cassette(self) -> "Judge":
        """A judge of the same settings, limits and budget whose replies are all asked for anew."""
        other = copy.copy(self)
        other.position_bias, other.cassette = {}, None
        other._clients = [[replace(client, cassette=None) for client in clients] for clients in self._clients]
        return other

    @property
    def stopped(self) -> JudgeError | None:
        """Why no further group can be judged: no model of a juror can be asked, or the budget is used up."""
        return self._closed or (self.budget.refused and as_judge_error(self.budget.refused))

    @property
    def asks_servers(self) -> bool:
        """Whether requests of this judge leave the process, as those to a callable or a local model do not."""
        return any(client.can_be_probed for client in chain.from_iterable(self._clients))

    @property
    def status(self) -> str:
        """Cost so far, and what its calls wait for, for a live line: "0.42 USD · rate limited, 20 s"."""
        cost = self.budget.cost if self.budget.calls else ""
        return " · ".join(filter(None, (cost, self.activity.waiting)))

    @property
    def _closed(self) -> JudgeError | None:
        """The permanent error of a juror that has no model left."""
        for clients in self._clients:
            errors = [client.breaker.error for client in clients]
            if (error := errors[0]) is not None and all(errors):
                return as_judge_error(error)
        return None

    async def score(
        self, group: TrajectoryGroup, *, noise_prior: NoisePrior | None = None, progress: Progress | None = None
    ) -> TrajectoryGroup:
        """A copy of the group with rewards and judgements; a pending group is run first.

        `noise_prior`: instead of the judge's own. `progress`: is told of the votes as they come. A task's own rubric,
        reference and criteria are those of `gavel.scenarios.truth.truth_of`.

        Raises `JudgeError` for a group without trajectories, for a trajectory without messages that has not failed, for
        tasks with different references, rubrics or criteria in one group, for a juror that cannot be asked (see
        `check`; a wrong key or an empty account shows when a model is asked), and when no juror has room for two
        members. All other failures are recorded in the judgements.
        """
        started = time.monotonic()
        if not isinstance(group, TrajectoryGroup):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise JudgeError(
                f"a {type(group).__name__} is no group.", "Give gavel.TrajectoryGroup(trajectories): all for one task."
            )
        if group.pending:
            await group
        if not group.trajectories:
            raise JudgeError(
                f"the group has no trajectories to judge ({counted(len(group.exceptions), 'rollout')} failed)."
            )
        attempts = {i: t for i, t in enumerate(group.trajectories) if t.status != "failed"}
        if empty := [i for i, t in attempts.items() if not any(h.messages_and_choices for h in t.histories())]:
            raise JudgeError(
                f"trajectory {empty[0]} of the group (counted from 0) has no messages.",
                'Leave it out, or mark it as failed: Trajectory(status="failed", status_reason=…).',
            )
        loop = asyncio.get_running_loop()
        if loop not in self._prepared_groups:
            self._prepared_groups[loop] = CapacityLimiter(self._max_prepared)
        async with self._prepared_groups[loop]:
            await next_turn()
            scored, whole = await self._judge(group, attempts, noise_prior or self.noise_prior, progress or Progress())
        whole.seconds = time.monotonic() - started
        return with_judgements(group, scored, whole)

    async def _judge(
        self,
        group: TrajectoryGroup,
        attempts: Mapping[int, Trajectory],
        noise_prior: NoisePrior | None,
        progress: Progress,
    ) -> tuple[list[Judgement], GroupJudgement]:
        """Judgements of the group's trajectories; `attempts`, by index, are those that have not failed."""
        truth = truth_of(group)
        rubric = self.rubric.for_task(truth)
        characters = characters_of(group.trajectories)
        failed = await off_loop_if_long(characters, _canonical_failures, group.trajectories, attempts)
        view = View(self._image_support, self._redact)
        content = await off_loop_if_long(characters, read_attempts, attempts, self.anchors, view, self.unseen)
        fixed = content.fixed
        canonical = with_reference(content.seen, None if truth.reference is None else view.text(truth.reference))
        ballots: list[Ballot] = []
        if len(canonical.members) > 1 or (len(canonical.members) == 1 and not fixed and self.alone == "scored"):
            self.check()
            poll = Poll(
                self.jurors,
                self._clients,
                rubric,
                self.content_retries,
                self.position_bias,
                self.cache,
                self._mode.form,
            )
            counts = [juror.orders or self.orders for juror in self.jurors]
            seed = f"{self.seed}/{canonical.digest}"
            max_shown = partial(poll.max_shown, canonical)
            schedule = await off_loop_if_long(
                characters, self._mode.schedule, len(canonical.members), counts, seed, fixed, max_shown
            )
            progress.calls, progress.group = sum(map(len, schedule)), canonical
            ballots = await poll.poll(canonical, schedule, seed, progress.ballots.append)
            if (closed := self._closed) is not None and any(ballot.scores is None for ballot in ballots):
                raise closed
            if ballots and all(ballot.no_room and not ballot.calls for ballot in ballots):
                raise next(ballot.no_room for ballot in ballots if ballot.no_room)
        aggregate = partial(self._mode.aggregate, fixed=fixed, noise_prior=noise_prior)
        members = judge_members(group.trajectories, canonical, ballots, self.quorum, aggregate)
        for index, reason in content.unseen.items():
            members[index] = Judgement(reason=reason)
        for part in (canonical, failed, content.hidden):
            apply_flags(members, part, self.caps)
        whole = judge_group(members, canonical, ballots)
        whole.mode = self.mode
        whole.warnings += self._served_models.changes(ballots)
        whole.warnings += bias_warnings(self.position_bias, {len(ballot.shown) for ballot in ballots})
        if any(ballot.model == stand_in.MODEL and ballot.scores for ballot in ballots):
            short = stand_in.shortfall(rubric, canonical, has_reference=truth.reference is not None)
            whole.warnings += filter(None, [short])
        whole.models = self.names
        whole.prompt_ids = [rubric.id, *dict.fromkeys(i for ballot in ballots for i in ballot.prompt_ids)]
        whole.seed = self.seed
        whole.settings = self.settings
        if truth:
            whole.settings |= {"task_rubric": rubric.id, "truth": truth.dump()}
        return members, whole

    @cached_property
    def _image_support(self) -> ImageSupport:
        """The images that every model which may be asked can be sent."""
        if self.images == "flag":
            return "none"
        asked = self.images == "send"
        found = {image_support(client.model, asked=asked) for client in chain.from_iterable(self._clients)}
        return next(support for support in ("none", "embedded", "any") if support in found)


def _canonical_failures(trajectories: Sequence[Trajectory], attempts: Mapping[int, Trajectory]) -> CanonicalGroup:
    """The trajectories that are no attempts, with their flags."""
    return with_flags(canonicalize({i: t for i, t in enumerate(trajectories) if i not in attempts}))
