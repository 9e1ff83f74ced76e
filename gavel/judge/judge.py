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
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter
from openai.types.chat.chat_completion import Choice
from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from gavel.base.text import counted
from gavel.judge.config import JudgeConfig, read_text_option
from gavel.judge.errors import JudgeError, as_judge_error, llm_errors_as_judge_errors, no_group
from gavel.judge.offline import stand_in
from gavel.judge.panel.anchors import Anchor, check_anchors, read_attempts
from gavel.judge.panel.judgements import Ballot, judge_group, judge_members, p_right
from gavel.judge.panel.juror import Models, jury
from gavel.judge.panel.modes import ModeName, choose_mode
from gavel.judge.panel.polling import LONG, Poll, off_loop_if_long
from gavel.judge.panel.standard_errors import NoisePrior
from gavel.judge.prompt.canonical_group import CanonicalGroup, with_reference
from gavel.judge.prompt.flags import AlonePolicy, apply_flags, validate_caps
from gavel.judge.prompt.provider_formats import View, without_thoughts
from gavel.judge.prompt.sanitize import redact_secrets
from gavel.judge.rubric import Rubric
from gavel.judge.stats import LengthBias, PositionBias, characters_written
from gavel.llm.budget import Budget, Prices, prices_from_environment
from gavel.llm.cassette import Cassette
from gavel.llm.client import Client, Probe
from gavel.llm.errors import LlmError
from gavel.llm.providers import ImageSupport, image_support, load_litellm_in_thread
from gavel.llm.rate_limits import Activity, Limits
from gavel.scenarios.formats.chat import misnamed_assistant
from gavel.scenarios.group import TrajectoryGroup, with_judgements
from gavel.scenarios.judgement import GroupJudgement, Judgement
from gavel.scenarios.trajectory import Trajectory, as_item
from gavel.scenarios.truth import truth_of

_LOG = logging.getLogger(__name__)
_UNSURE = 0.6
"""Probability of being right below which a judgement warns."""
_EQUAL_WEIGHTS = (
    "{count} judge models weigh the same, though nothing says that they are equally good: a weak one costs more than "
    "it adds (recorded verdicts on adversarial pairs: the best alone .79 right, with five weaker ones .43); learn "
    "their weights from 50 labelled pairs: gavel judge golden FILE --judge {judges}"
)
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
        mode: ModeName | None = None,
        orders: int | None = None,
        states: bool | None = None,
        anchors: Iterable[Anchor] = (),
        alone: AlonePolicy | None = None,
        concurrency: int | None = None,
        budget: Budget | None = None,
        cassette: Cassette | str | Path | None = None,
        prices: Prices | None = None,
        seed: int | None = None,
        config: JudgeConfig | dict[str, object] | None = None,
        **others: object,
    ) -> None:
        """`models`: a LiteLLM id, a callable of messages and schema, or a list of these or `Juror`s.

        `config`: all settings, described in `JudgeConfig`, or a dict of them; the keywords stand above it, and what
        neither names has the default of `JudgeConfig`. `anchors`: trajectories with fixed scores, shown in every call,
        which put the scores of all groups on their scale. `budget`: may be shared with other judges. `cassette`: a
        file, or one that judges share.

        Raises `JudgeError` for settings that make no sense, alone or together.
        """
        if others:
            raise JudgeError(
                f"Judge takes no {', '.join(others)}.",
                f"Give config=JudgeConfig(…), which has {', '.join(JudgeConfig.model_fields)}. What a model takes: "
                'JudgeConfig(params={"temperature": 0.1}), or for one alone Juror(model, params=…).',
            )
        given = {"mode": mode, "orders": orders, "states": states, "alone": alone, "concurrency": concurrency}
        config = JudgeConfig().with_given(**config) if isinstance(config, dict) else config or JudgeConfig()
        config = config.with_given(**given, seed=seed, prices=prices)
        self.config = config
        self.anchors = check_anchors(anchors)
        self._mode = choose_mode(config.mode, has_anchors=bool(self.anchors), states=config.states)
        self.mode = "anchored" if self.anchors and config.mode == "groupwise" else config.mode
        """Stored in the judgements: "groupwise", "anchored", "pairwise", "decisions" or "readout"."""
        self.rubric = Rubric.of(read_text_option(config.rubric or None, "rubric") if rubric is None else rubric)
        self.jurors = tuple(
            replace(juror, params={**config.params, **juror.params})
            for juror in jury((config.models or None) if models is None else models)
        )
        self.orders = config.orders
        self.caps = validate_caps(config.caps)
        self._redact = redact_secrets if config.redact == "secrets" else config.redact
        self._served_by: dict[str, list[str]] = {}
        """Model asked -> the names under which its servers answered."""
        self.position_bias: dict[int, PositionBias] = {}
        """The judge's position bias so far, by number of members shown."""
        self.length_bias = LengthBias()
        """How far its scores have gone with length so far."""
        self._jury_warned = False
        self.activity = Activity()
        """Waits of its calls."""
        if cassette is None and config.cassette != Path("none"):
            cassette = config.cassette
        self.cassette = Cassette(cassette) if isinstance(cassette, str | Path) else cassette
        self._prepared_groups: WeakKeyDictionary[asyncio.AbstractEventLoop, CapacityLimiter] = WeakKeyDictionary()
        with llm_errors_as_judge_errors():
            self.budget = budget or Budget(config.max_cost_usd, config.max_tokens)
            limits = Limits(**{each.name: getattr(config, each.name) for each in fields(Limits)})
            known_prices = prices_from_environment() if config.prices is None else config.prices
        self._clients = [
            [
                Client(
                    model,
                    {**self._mode.params, **juror.params},
                    replace(limits, deadline=config.deadline / len(juror.models)),
                    known_prices,
                    self.budget,
                    self.cassette,
                    juror.context,
                    self.activity,
                    wire=self._mode.wire,
                    has_fallback=model is not juror.models[-1],
                )
                for model in juror.models
            ]
            for juror in self.jurors
        ]

    @property
    def names(self) -> list[str]:
        """The models that may be asked, the fallbacks included; a callable goes by its own name."""
        return [client.name for client in chain.from_iterable(self._clients)]

    @property
    def settings(self) -> dict[str, JsonValue]:
        """Everything that may change a score: models, rubric and whatever is decided here; no limits and no costs.

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
            "quorum": self.config.quorum,
            "caps": dict[str, JsonValue](self.caps),
            "unseen": self.config.unseen,
            "images": self.config.images,
            "alone": self.config.alone,
            "redact": getattr(self._redact, "__qualname__", None if self._redact is None else "a function"),
            "content_retries": self.config.content_retries,
            "seed": self.config.seed,
            "noise_prior": self.config.noise_prior and self.config.noise_prior.model_dump(),
            **({"states": True} if self.config.states else {}),
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
        Without `replayed`, models with a cassette of an earlier run are asked as by `probe_when_asked`.
        """
        self.check()
        asked = {_endpoint(one): one for one in chain.from_iterable(self._clients) if one.can_be_probed}
        if not replayed and self.cassette and self.cassette.path and self.cassette.path.exists():
            self.probe_when_asked()
            return []
        async with asyncio.TaskGroup() as tasks:
            probing = {endpoint: tasks.create_task(_probe(client)) for endpoint, client in asked.items()}
        answers = {endpoint: task.result() for endpoint, task in probing.items()}
        for clients in self._clients:
            errors = [answers.get(_endpoint(client)) for client in clients]
            if isinstance(first := errors[0], LlmError) and all(isinstance(error, LlmError) for error in errors):
                raise as_judge_error(first)
        failed = {name: error.message for (name, _), error in answers.items() if isinstance(error, LlmError)}
        probes = [answer for answer in answers.values() if isinstance(answer, Probe)]
        return probes + [Probe(name, "", "", 0.0, None, problem) for name, problem in failed.items()]

    @property
    def writer(self) -> Client:
        """The client of the first juror's model, for text in place of scores."""
        return replace(self._clients[0][0], params=dict(self.jurors[0].params), wire="chat", has_fallback=False)

    def rehearsal(self, kind: Callable[..., Client], **more: object) -> "Judge":
        """A judge of the same settings that asks a client of this `kind` instead of each juror's first one: with the
        same fields, and `more`."""
        first = [{each.name: getattr(clients[0], each.name) for each in fields(Client)} for clients in self._clients]
        return self._copy(_clients=[[kind(**given, **more)] for given in first])

    def with_rubric(self, rubric: Rubric | str) -> "Judge":
        """A judge of the same models, limits, budget and cassette that scores by another rubric."""
        return self._copy(rubric=Rubric.of(rubric))

    def without_cassette(self) -> "Judge":
        """A judge of the same settings, limits and budget whose replies are all asked for anew."""
        anew = [[replace(client, cassette=None) for client in clients] for clients in self._clients]
        return self._copy(cassette=None, _clients=anew)

    def _copy(self, **changes: object) -> "Judge":
        other = copy.copy(self)
        vars(other).update(position_bias={}, length_bias=LengthBias(), **changes)
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

    async def score(self, group: TrajectoryGroup, *, noise_prior: NoisePrior | None = None) -> TrajectoryGroup:
        """A copy of the group with rewards and judgements; a pending group is run first.

        `noise_prior`: instead of the judge's own. A task's own rubric, reference and criteria are those of
        `gavel.scenarios.truth.truth_of`.

        Raises `JudgeError` for a group without trajectories, for a trajectory without messages that has not failed, for
        one where unknown roles speak and the assistant does not, for tasks with different references, rubrics or
        criteria in one group, for a juror that cannot be asked (see `check`; a wrong key or an empty account shows when
        a model is asked), and when no juror has room for two members. All other failures stand in the judgements.
        """
        started = time.monotonic()
        if not isinstance(group, TrajectoryGroup):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise no_group(group)
        if group.pending:
            await group
        if not group.trajectories:
            given = "Give gavel.TrajectoryGroup([trajectory, …]): the attempts at one task."
            raise JudgeError(
                f"the group has no trajectories to judge ({counted(len(group.exceptions), 'rollout')} failed).",
                "Mend what raised: group.exceptions has the tracebacks." if group.exceptions else given,
            )
        check_attempts(group)
        if self.asks_servers:
            await load_litellm_in_thread()
        loop = asyncio.get_running_loop()
        if loop not in self._prepared_groups:
            self._prepared_groups[loop] = CapacityLimiter(_PREFETCH * self.config.concurrency)
        async with self._prepared_groups[loop]:
            scored, whole = await self._judge(group, noise_prior or self.config.noise_prior)
        whole.seconds = time.monotonic() - started
        return with_judgements(group, scored, whole)

    async def _judge(
        self, group: TrajectoryGroup, noise_prior: NoisePrior | None
    ) -> tuple[list[Judgement], GroupJudgement]:
        """Judgements of the group's trajectories, and of the group."""
        truth = truth_of(group)
        rubric = self.rubric.for_task(truth)
        characters = _characters(group.trajectories)
        view, trajectories = View(self._image_support, self._redact), dict(enumerate(group.trajectories))
        content = await off_loop_if_long(
            characters, read_attempts, trajectories, self.anchors, view, self.config.unseen
        )
        reference = None if truth.reference is None else without_thoughts(truth.reference)[0]
        canonical = with_reference(content.seen, None if reference is None else view.text(reference))
        ballots = await self._ballots(canonical, content.fixed, rubric, characters)
        aggregate = partial(self._mode.aggregate, fixed=content.fixed, noise_prior=noise_prior)
        members = judge_members(group.trajectories, canonical, ballots, self.config.quorum, aggregate)
        for index, reason in content.unseen.items():
            members[index] = Judgement(reason=reason)
        for part in (canonical, *content.others):
            apply_flags(members, part, self.caps)
        whole = judge_group(members, canonical, ballots)
        whole.p_right = p_right(members, noise_prior)
        whole.warnings += self._warnings(ballots)
        whole.warnings += self._length_warning(group, canonical, members, noise_prior)
        if whole.p_right is not None and whole.p_right < _UNSURE:
            whole.warnings.append(
                f"by the labels that this judge learnt from, the higher-scored of two of these is the better one with "
                f"probability {whole.p_right:.2f}: judge with more orders or a stronger judge model"
            )
        if any(ballot.model == stand_in.MODEL and ballot.scores for ballot in ballots):
            short = stand_in.shortfall(rubric, canonical, reference=reference)
            whole.warnings += filter(None, [short])
        whole.mode, whole.models, whole.seed, whole.settings = self.mode, self.names, self.config.seed, self.settings
        whole.prompt_ids = [rubric.id, *dict.fromkeys(i for ballot in ballots for i in ballot.prompt_ids)]
        if truth:
            whole.settings |= {"task_rubric": rubric.id, "truth": truth.dump()}
        return members, whole

    async def _ballots(
        self, group: CanonicalGroup, fixed: Mapping[int, float], rubric: Rubric, characters: int
    ) -> list[Ballot]:
        """The ballots of all jurors; none where there is nothing to compare.

        Raises `JudgeError` when a juror cannot be asked, or when no juror has room for two members.
        """
        size = len(group.members)
        if not (size > 1 or (size == 1 and not fixed and self.config.alone == "scored")):
            return []
        self.check()
        poll = Poll(
            self.jurors,
            self._clients,
            rubric,
            self.config.content_retries,
            self.position_bias,
            self.config.cache,
            self._mode,
        )
        counts = [juror.orders or self.orders for juror in self.jurors]
        seed = f"{self.config.seed}/{group.digest}"
        max_shown = partial(poll.max_shown, group)
        schedule = await off_loop_if_long(characters, self._mode.schedule, size, counts, seed, fixed, max_shown)
        ballots = await poll.poll(group, schedule, seed)
        if (closed := self._closed) is not None and any(ballot.scores is None for ballot in ballots):
            raise closed
        no_room = [ballot.no_room for ballot in ballots if ballot.no_room and not ballot.calls]
        if ballots and len(no_room) == len(ballots):
            raise no_room[0]
        return ballots

    def _warnings(self, ballots: Sequence[Ballot]) -> list[str]:
        """A sentence for each model that another one answers for than before, told once, and for a position bias."""
        warnings: list[str] = []
        for ballot in ballots:
            name = ballot.replies[-1].served_by if ballot.replies else ""
            known = self._served_by.setdefault(ballot.model, [])
            if not name or name in known:
                continue
            if known:
                warnings.append(f"{ballot.model} is now served by {name}, before by {known[-1]}: scores may shift")
                _LOG.warning("%s", warnings[-1])
            known.append(name)
        names = [clients[0].name for clients in self._clients]
        if ballots and len(set(names)) > 1 and len({juror.weight for juror in self.jurors}) == 1:
            if not self._jury_warned:
                warnings.append(_EQUAL_WEIGHTS.format(count=len(names), judges=",".join(names)))
            self._jury_warned = True
        for size in sorted({len(ballot.shown) for ballot in ballots}):
            if (bias := self.position_bias.get(size)) and bias.is_biased:
                warnings.append(
                    f"this judge has a position bias: of {size} members shown, the last has gained "
                    f"{2 * bias.slope:+.2f} over the first ({bias.ballots} ballots); an even number of orders balances "
                    "its linear part"
                )
        return warnings

    def _length_warning(
        self,
        group: TrajectoryGroup,
        canonical: CanonicalGroup,
        members: Sequence[Judgement],
        noise_prior: NoisePrior | None,
    ) -> list[str]:
        """A sentence where scores have gone with length by more than labels do, as far as labels are known."""
        first = [member.indices[0] for member in canonical.members if member.indices]
        scored = [(index, score) for index in first if (score := members[index].score) is not None]
        self.length_bias.add([(characters_written(group.trajectories[index]), score) for index, score in scored])
        expected = noise_prior.length if noise_prior is not None else None
        if not self.length_bias.exceeds(expected or 0.0):
            return []
        people = "nothing says that people's do" if expected is None else f"by {expected:+.2f} in its labels"
        return [
            f"this judge's scores go with length: correlation {self.length_bias.correlation:+.2f} with log characters "
            f"in {self.length_bias.groups} groups ({people}); say in the rubric that length is worth nothing, or label "
            "pairs to learn what it is worth: gavel judge golden FILE"
        ]

    @cached_property
    def _image_support(self) -> ImageSupport:
        """The images that every model which may be asked can be sent."""
        if self.config.images == "flag":
            return "none"
        asked = self.config.images == "send"
        found = {image_support(client.model, asked=asked) for client in chain.from_iterable(self._clients)}
        return next(support for support in ("none", "embedded", "any") if support in found)


def check_attempts(group: TrajectoryGroup) -> None:
    """Raises `JudgeError` for an attempt without messages that has not failed, for one with an item that is none, and
    for one where unknown roles speak and the assistant does not."""
    for i, t in enumerate(group.trajectories):
        items = [item for each in (t, *t.additional_histories) for item in each.messages_and_choices]
        if t.status == "failed":
            continue
        if not items:
            raise JudgeError(
                f"trajectory {i} of the group (counted from 0) has no messages.",
                'Leave it out, or mark it as failed: Trajectory(status="failed", status_reason=…).',
            )
        if odd := [item for item in items if not _is_message(item)]:
            raise JudgeError(
                f"trajectory {i} of the group (counted from 0) holds {odd[0]!r:.80}, which is no message.",
                "Append the reply's choice itself, not its text, and what answers a call once it is there: "
                "trajectory.messages_and_choices.append(await tools.answer(call)).",
            )
        messages = [item for item in items if not isinstance(item, Choice)]  # a choice is the assistant's
        if len(messages) == len(items) and (misnamed := misnamed_assistant(messages)):
            raise JudgeError(f"trajectory {i} of the group (counted from 0): {misnamed[0]}", misnamed[1])


def _is_message(item: Any) -> bool:
    """Whether a trajectory's item, which may have been appended without validation, is a message or a choice."""
    if isinstance(item, Choice) or (isinstance(item, dict) and "role" in item):
        return True
    try:
        return isinstance(as_item(item), Choice | dict)
    except ValueError:
        return False


async def _probe(client: Client) -> Probe | LlmError:
    try:
        return await client.probe()
    except LlmError as error:
        return error


def _endpoint(client: Client) -> tuple[str, str]:
    """Clients for which one question answers for all."""
    return client.name, repr(sorted(client.params.items()))


def _characters(trajectories: Iterable[Trajectory]) -> int:
    """About the characters of the trajectories' messages, as far as it takes to see that they are many."""
    total = 0
    for trajectory in trajectories:
        for history in (trajectory, *trajectory.additional_histories):
            for item in history.messages_and_choices:
                if isinstance(item, Choice):
                    parts: list[Any] = [item.message.content, item.message.tool_calls]
                else:
                    parts = [item.get("content"), item.get("tool_calls")]
                total += sum(len(part if isinstance(part, str) else str(part)) for part in parts if part)
            if total > LONG:
                return total
    return total
