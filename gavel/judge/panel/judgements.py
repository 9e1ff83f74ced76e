"""Judgements: ballots become a judgement for each trajectory, and one for the group.

A member without votes, or without a quorum, is unscored with the reason: no step makes a number that no judge gave.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, pairwise
from statistics import fmean

from gavel.judge.errors import ContextTooSmallError
from gavel.judge.panel.aggregate import Aggregate, AggregateScore, Answer, groupwise
from gavel.judge.panel.standard_errors import NoisePrior
from gavel.judge.prompt.canonical_group import CanonicalGroup
from gavel.judge.reply.verdict import Scored
from gavel.judge.stats import mean_and_error, order_agreement, weighted_mean
from gavel.llm.types import Reply
from gavel.scenarios.judgement import GroupJudgement, GroupStatus, Judgement, Vote
from gavel.scenarios.trajectory import Trajectory


@dataclass(slots=True)
class Ballot:
    """One order of presentation for one juror; polling fills it in."""

    order: int
    """Index of the call."""
    shown: tuple[int, ...]
    """Members of the canonical group in the order shown; of a large group only some."""
    model: str
    """The model that was asked last."""
    juror: int = 0
    """Index of the juror."""
    weight: float = 1.0
    scores: dict[int, Scored] | None = None
    """Member -> score; None = the ballot is lost."""
    problem: str = ""
    """The last failure."""
    refusal: str = ""
    """Why a model refused to judge what the ballot shows; empty = none did."""
    refused: dict[int, str] = field(default_factory=dict[int, str])
    """Members that were left out of `shown` because the juror refuses their text, with its words."""
    unread: dict[int, str] = field(default_factory=dict[int, str])
    """Members that were shown and have no score in the reply, with the reason."""
    lost_states: dict[int, str] = field(default_factory=dict[int, str])
    """Members that have a score in the reply and no states that can be used, with the reason."""
    no_room: ContextTooSmallError | None = None
    """Why the last model was not asked."""
    shortened: bool = False
    """Whether texts were shortened to fit the model's context."""
    calls: int = 0
    """Requests, those answered by a cassette included."""
    free_calls: int = 0
    """Requests that failed and cost nothing: they were not sent, or answered with an error."""
    replies: list[Reply] = field(default_factory=list[Reply])
    reply_key: str = ""
    """Key, on the cassette, of the reply with the scores."""
    prompt_ids: list[str] = field(default_factory=list[str])
    repairs: Counter[str] = field(default_factory=Counter[str])
    """Repairs that reading the scores took, by kind."""

    def add_costs(self, other: "Ballot") -> None:
        """Counts the calls of another ballot, which was asked for the sake of this one."""
        self.calls += other.calls
        self.free_calls += other.free_calls
        self.replies += other.replies
        self.prompt_ids += other.prompt_ids

    def vote(self, member: int) -> Vote | None:
        """The vote for a member; None when the ballot is lost or does not show it."""
        if self.scores is None or member not in self.scores:
            return None
        scored = self.scores[member]
        return Vote(
            score=scored.score,
            position=self.shown.index(member),
            order=self.order,
            model=self.model,
            served_by=self.replies[-1].served_by if self.replies else "",
            explanation=scored.explanation,
            criteria=dict(scored.criteria),
            spread=scored.spread,
            states=list(scored.states),
            reply_key=self.reply_key,
        )


def judge_members(
    trajectories: Sequence[Trajectory],
    group: CanonicalGroup,
    ballots: Sequence[Ballot],
    quorum: float = 0.0,
    aggregate: Aggregate = groupwise,
) -> list[Judgement]:
    """A judgement for each trajectory, in order; identical trajectories share votes and score.

    `quorum`: the minimum share of the jury's weight that must have voted for a member; below it the member is
    unscored. `aggregate`: how votes become scores.
    """
    answers: list[Answer] = []
    for ballot in ballots:
        if ballot.scores is not None:
            numbers = {member: scored.score for member, scored in ballot.scores.items()}
            spreads = {member: scored.spread for member, scored in ballot.scores.items() if scored.spread is not None}
            answers.append(Answer(ballot.order, ballot.juror, ballot.weight, numbers, spreads))
    scores = aggregate(answers, len(group.members))
    found: dict[int, Judgement] = {}
    for number, member in enumerate(group.members):
        score = scores.get(number, "")
        if len(group.members) > 1 or ballots:
            judgement = _judgement(number, ballots, score, quorum)
            if any(vote.states for vote in judgement.votes):
                _expect(judgement, group.turns(number), ballots)
        elif isinstance(score, str):
            judgement = Judgement(reason=_alone(group))
        else:
            judgement = Judgement(score=score.score, explanation="identical to an anchor")
        for copies, index in enumerate(member.indices):
            found[index] = judgement.model_copy(deep=True) if copies else judgement
    judgements = [
        found.get(index)
        or Judgement(reason=f"the rollout failed: {trajectory.status_reason or 'no reason is recorded'}")
        for index, trajectory in enumerate(trajectories)
    ]
    known = [(judgement, judgement.score) for judgement in judgements if judgement.score is not None]
    mean = fmean(score for _, score in known) if known else 0.0
    for judgement, score in known:
        if judgement.states and score < mean:
            falls = [before - after for before, after in pairwise([mean, *judgement.states])]
            judgement.largest_fall = falls.index(max(falls))
    return judgements


def _alone(group: CanonicalGroup) -> str:
    if len(group.members[0].indices) == 1:
        return "there is no other trajectory to compare it with"
    return "identical to every other member"


def _judgement(member: int, ballots: Sequence[Ballot], score: AggregateScore | str, quorum: float) -> Judgement:
    shown = [ballot for ballot in ballots if member in ballot.shown or member in ballot.refused]
    cast = {ballot.order: (ballot, vote) for ballot in shown if (vote := ballot.vote(member))}
    votes, weights = [vote for _, vote in cast.values()], [ballot.weight for ballot, _ in cast.values()]
    unread = (ballot.unread[member] for ballot in shown if member in ballot.unread)
    problem = next(chain(unread, (ballot.problem for ballot in shown if ballot.scores is None)), "")
    if not cast:
        refusal = next((ballot.refused[member] for ballot in shown if member in ballot.refused), "")
        return Judgement(reason=f"the judge model refuses its text: {refusal}" if refusal else f"no vote: {problem}")
    jurors = {ballot.juror: ballot.weight for ballot in shown}
    share = sum(jurors[juror] for juror in {ballot.juror for ballot, _ in cast.values()}) / sum(jurors.values())
    if share < quorum - 1e-9:
        return Judgement(votes=votes, reason=f"no quorum: {share:.0%} of the jury voted, not {quorum:.0%}: {problem}")
    if isinstance(score, str):
        return Judgement(votes=votes, reason=": ".join(filter(None, (score, problem))))
    return Judgement(
        score=score.score,
        standard_error=score.standard_error,
        degrees_of_freedom=score.degrees_of_freedom,
        explanation="" if score.typical is None else cast[score.typical][1].explanation,
        criteria={name: weighted_mean([v.criteria[name] for v in votes], weights) for name in votes[0].criteria},
        votes=votes,
    )


def _expect(judgement: Judgement, turns: int, ballots: Sequence[Ballot]) -> None:
    """Gives a scored judgement the states of its votes, those that have as many as the member has turns.

    A vote's states are read as differences from its own score: so they are on the scale of the aggregated score, and
    what a position adds to both is in neither.
    """
    weight_of = {ballot.order: ballot.weight for ballot in ballots}
    for vote in judgement.votes:
        vote.states = vote.states if len(vote.states) == turns else []  # some turns were left out of a long prompt
    votes = [vote for vote in judgement.votes if vote.states]
    if judgement.score is None or not votes:
        return
    weights = [weight_of[vote.order] for vote in votes]
    found = [mean_and_error([vote.states[turn] - vote.score for vote in votes], weights) for turn in range(turns)]
    judgement.states = [min(max(judgement.score + mean, 0.0), 1.0) for mean, _ in found]
    judgement.states_standard_errors = [error for _, error in found if error is not None]


def p_right(members: Sequence[Judgement], prior: NoisePrior | None) -> float | None:
    """The probability that of two members the higher-scored is the better one; pairs weigh by their difference.

    None without labels, and where no two scores differ.
    """
    if prior is None or prior.skill is None:
        return None
    scored = [(each.score, each.standard_error or 0.0) for each in members if each.score is not None]
    pairs = [(abs(a - b), math.hypot(one, other)) for (a, one), (b, other) in combinations(scored, 2)]
    total = math.fsum(difference for difference, _ in pairs)
    right = math.fsum(difference * prior.p_better(difference, error) for difference, error in pairs)
    return right / total if total else None


def judge_group(members: Sequence[Judgement], group: CanonicalGroup, ballots: Sequence[Ballot]) -> GroupJudgement:
    """The status of the group, and the cost of its calls."""
    status, reason = _status(members, group)
    all_replies = [reply for ballot in ballots for reply in ballot.replies]
    replies = [reply for reply in all_replies if not reply.cached]
    cached_calls = len(all_replies) - len(replies)
    calls = sum(ballot.calls for ballot in ballots) - cached_calls
    paid_calls = calls - sum(ballot.free_calls for ballot in ballots)
    costs = [reply.cost_usd for reply in replies if reply.cost_usd is not None]
    agreement = order_agreement(
        {member: scored.score for member, scored in ballot.scores.items()} for ballot in ballots if ballot.scores
    )
    return GroupJudgement(
        status=status,
        reason=reason,
        calls=calls,
        cached_calls=cached_calls,
        lost_orders=sum(ballot.scores is None for ballot in ballots),
        order_agreement=agreement,
        prompt_tokens=sum(reply.prompt_tokens for reply in replies),
        cached_prompt_tokens=sum(reply.cached_prompt_tokens for reply in replies),
        completion_tokens=sum(reply.completion_tokens for reply in replies),
        cost_usd=sum(costs) if len(costs) == paid_calls else None,
        repairs=dict(sum((ballot.repairs for ballot in ballots), Counter[str]())),
        warnings=list(_warnings(ballots, agreement)),
    )


def _warnings(ballots: Sequence[Ballot], agreement: float | None) -> Iterator[str]:
    for ballot in ballots:
        if ballot.scores is None:
            yield f"order {ballot.order} is lost: {ballot.problem}"
            continue
        if ballot.refused:
            yield f"order {ballot.order}: the judge model refuses the text of {len(ballot.refused)} members"
        if ballot.lost_states:
            count, why = len(ballot.lost_states), next(iter(ballot.lost_states.values()))
            yield f"order {ballot.order}: the states of {count} of {len(ballot.shown)} members cannot be used: {why}"
        if ballot.shortened:
            yield f"order {ballot.order}: long texts were shortened to fit the context of {ballot.model}"
    if agreement is not None and agreement <= 0:
        yield (
            f"its orders contradict each other (mean tau {agreement:.2f}): the scores say little about which attempt "
            "is better; judge with more orders (--orders, at least 4) or a stronger judge model"
        )


def _status(members: Sequence[Judgement], group: CanonicalGroup) -> tuple[GroupStatus, str | None]:
    reasons = [member.reason for member in members if member.score is None]
    if not reasons:
        return "scored", None
    if len(reasons) < len(members):
        return "partial", f"{len(reasons)} of {len(members)} trajectories are unscored; {reasons[0]}"
    if len(group.members) == 1 and (alone := _alone(group)) in reasons:
        survivor = len(group.members[0].indices) == 1 < len(members)
        return ("unscored" if survivor else "degenerate"), alone
    return "unscored", reasons[0]
