"""The golden set: groups with a known order, for regression tests of a judge and its prompts.

A verdict concerns two members of which one is known to be better; it is right if the better one scored higher. A
group that was not fully judged has no verdicts. Recorded scores are compared with later ones, so that a change of
prompts is assessed by the verdicts that it changes.

    jury_weights(golden_scores(results))      {"openai/a": 1.62, "openai/b": 0.38}      for Juror(model, weight=…)

The weights are those of the best linear combination of judges that err independently. Judges that err alike need less.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from gavel.base.errors import first_error
from gavel.judge.audit.agreement import Pairs, centred_sums
from gavel.judge.audit.votes import distinct_members, judge_calls
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

SHIPPED = Path(__file__).with_name("golden.json")


class GoldenGroup(BaseModel):
    """Attempts at one task, and which of them are better."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    shows: str = ""
    """The ability that the group tests."""
    opening: list[Message] = Field(default_factory=list[Message])
    """OpenAI messages with which every member begins."""
    tools: list[Message] = Field(default_factory=list[Message])
    """OpenAI tool schemas, of every member."""
    members: dict[str, Annotated[list[Message], Field(min_length=1)]]
    """The messages after the opening, by name; judges do not see the names."""
    order: list[list[str]]
    """Tiers of names, best first; members of one tier are not compared."""

    @model_validator(mode="after")
    def _orders_its_members(self) -> Self:
        if sorted(name for tier in self.order for name in tier) != sorted(self.members):
            raise ValueError(f"the order of {self.name!r} must name each of its members once")
        if not self.pairs:
            raise ValueError(f"the order of {self.name!r} puts no member above another")
        return self

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(better, worse) for every two members that are compared."""
        return [pair for above, below in combinations(self.order, 2) for pair in product(above, below)]

    def group(self) -> TrajectoryGroup:
        """The members as a group to judge, in the order of the file."""
        return TrajectoryGroup(
            Trajectory(messages_and_choices=[*self.opening, *messages], tools=self.tools or None)
            for messages in self.members.values()
        )


def load_golden(path: Path = SHIPPED) -> list[GoldenGroup]:
    """The golden set in a JSON file, a list of `GoldenGroup`s; by default the one that is shipped.

    Raises `JudgeError` when the file cannot be read, or holds anything else.
    """
    remedy = f"See {SHIPPED} for the form."
    try:
        groups = TypeAdapter(list[GoldenGroup]).validate_json(path.read_bytes())
    except OSError as error:
        raise JudgeError(
            f"the golden set {path} cannot be read: {error.strerror or error}.", "Check the path."
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        what = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise JudgeError(f"{path} is no golden set: {what}.", remedy) from error
    names = [group.name for group in groups]
    if not groups or len(set(names)) < len(names):
        raise JudgeError(f"{path} is no golden set: it needs groups, each with a name of its own.", remedy)
    return groups


Scores = Mapping[str, float]
"""By member name."""


@dataclass(frozen=True, slots=True)
class GoldenResult:
    """A judge's scores of a golden group."""

    group: GoldenGroup
    scores: Scores
    """Of all members, or empty."""
    reason: str = ""
    """Why there are no scores."""
    prompt_ids: tuple[str, ...] = ()
    calls: int = 0
    """Calls made now."""
    cached_calls: int = 0
    """Replies from a cassette."""
    cost_usd: float | None = None
    """Of `calls`; None = unknown."""
    judged: TrajectoryGroup | None = None
    """The group with its votes, members in the order of the file."""

    @property
    def right(self) -> int:
        """Number of right verdicts."""
        return len(self.group.pairs) - len(self.violated) if self.scores else 0

    @property
    def violated(self) -> list[tuple[str, str]]:
        """The pairs whose better member did not score higher."""
        if not self.scores:
            return []
        return [(better, worse) for better, worse in self.group.pairs if not _is_right(self.scores, better, worse)]

    @property
    def agreement(self) -> float | None:
        """Share of right verdicts, 0 to 1; None if the group was not judged."""
        return self.right / len(self.group.pairs) if self.scores else None


async def check_golden(judge: Judge, groups: Iterable[GoldenGroup]) -> list[GoldenResult]:
    """Judges all groups concurrently; results are in order.

    A group with a lost call gets no scores, since fewer votes may give another order. Raises `JudgeError` if the judge
    cannot be called at all (see `Judge.check` and `Judge.score`).
    """
    judge.check()
    with first_error():
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(_check(judge, group)) for group in groups]
    return [task.result() for task in running]


async def _check(judge: Judge, group: GoldenGroup) -> GoldenResult:
    judged = await judge.score(group.group())
    whole = judged.judgement
    assert whole is not None
    rewards = [trajectory.reward for trajectory in judged]
    scores = {name: reward for name, reward in zip(group.members, rewards, strict=True) if reward is not None}
    lost = len(scores) < len(rewards) or whole.lost_orders > 0
    return GoldenResult(
        group=group,
        scores={} if lost else scores,
        reason=(whole.reason or "; ".join(whole.warnings)) if lost else "",
        prompt_ids=tuple(whole.prompt_ids),
        calls=whole.calls,
        cached_calls=whole.cached_calls,
        cost_usd=whole.cost_usd,
        judged=judged,
    )


@dataclass(frozen=True, slots=True)
class ChangedVerdict:
    """A verdict that differs from the recorded one."""

    group: str
    better: str
    worse: str
    before: tuple[float, float]
    """Scores of the better and the worse member."""
    after: tuple[float, float]

    @property
    def is_right(self) -> bool:
        """Whether it is right now, and was wrong before."""
        return self.after[0] > self.after[1]


def changed_verdicts(results: Sequence[GoldenResult], before: Mapping[str, Scores]) -> Iterator[ChangedVerdict]:
    """The verdicts that changed between right and wrong since the scores in `before`, which are by group name.

    Only members with scores on both sides are compared.
    """
    for result in results:
        old, new = before.get(result.group.name, {}), result.scores
        for better, worse in result.group.pairs:
            if {better, worse} <= old.keys() & new.keys() and (
                _is_right(old, better, worse) != _is_right(new, better, worse)
            ):
                yield ChangedVerdict(
                    result.group.name, better, worse, (old[better], old[worse]), (new[better], new[worse])
                )


def changed_prompts(before: Iterable[str], after: Iterable[str]) -> list[str]:
    """The template names whose `name@hash` ids before and after have no hash in common."""
    old, new = _hashes(before), _hashes(after)
    return [name for name, hashes in new.items() if name in old and not hashes & old[name]]


def _hashes(ids: Iterable[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, _, digest in (each.rpartition("@") for each in ids):
        found.setdefault(name, set()).add(digest)
    return found


def _is_right(scores: Scores, better: str, worse: str) -> bool:
    return scores[better] > scores[worse]


_CAUTION = 10.0
"""Members, added to those seen, of which no judge knows the order: a few groups do not make one judge decide alone."""
_MIN_R, _MAX_R = 0.02, 0.98
"""A judge that knows nothing keeps a small weight, which is above 0 as a juror's must be."""


def golden_scores(results: Iterable[GoldenResult]) -> list[dict[str, Pairs]]:
    """For each judged golden group, (score, rank from the worst tier) of its members by judge model.

    A model's score is the mean of its votes. Members that are identical to a judge count once.
    """
    found: list[dict[str, Pairs]] = []
    for result in results:
        if result.judged is None or not result.scores:
            continue
        tiers = {name: -tier for tier, names in enumerate(result.group.order) for name in names}
        rank = {id(member): tiers[name] for name, member in zip(result.group.members, result.judged, strict=True)}
        of_model: dict[str, dict[int, list[float]]] = {}
        for call in judge_calls(result.judged):
            for member, score in call.scores.items():
                of_model.setdefault(call.model, {}).setdefault(member, []).append(score)
        members = [member for member, _ in distinct_members(result.judged)]
        found.append(
            {
                model: [(math.fsum(own) / len(own), float(rank[id(members[n])])) for n, own in votes.items()]
                for model, votes in of_model.items()
            }
        )
    return found


def jury_weights(groups: Sequence[Mapping[str, Pairs]]) -> dict[str, float]:
    """The weight of each judge, 1 on average, from its (score, reference) pairs in each group.

    w ∝ r / (1 - r²), the weights of the best linear predictor from standardised scores whose errors are independent,
    with each judge's correlation r with the reference within groups, drawn towards 0 by `_CAUTION` members.
    """
    known = {judge: _correlation([group[judge] for group in groups if judge in group]) for judge in _judges(groups)}
    raw = {judge: r / (1 - r * r) for judge, r in known.items()}
    mean = math.fsum(raw.values()) / len(raw) if raw else 1.0
    return {judge: weight / mean for judge, weight in raw.items()}


def _judges(groups: Sequence[Mapping[str, Pairs]]) -> list[str]:
    return list(dict.fromkeys(judge for group in groups for judge in group))


def _correlation(groups: Sequence[Pairs]) -> float:
    """Of scores and references that are standardised within each group; a group that the judge ties counts as 0."""
    products = members = 0.0
    for pairs in groups:
        xy, xx, yy = centred_sums(pairs)
        if yy:
            members += len(pairs)
            products += len(pairs) * xy / (math.sqrt(xx * yy) or 1.0)
    return min(max(products / (members + _CAUTION), _MIN_R), _MAX_R)
