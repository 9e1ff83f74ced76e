"""Judgements: ballots become a judgement for each trajectory, and one for the group.

A member without votes, or without a quorum, is unscored with the reason: no step makes a number that no judge gave.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from gavel.judge.panel.aggregate import Aggregate, AggregateScore, Answer, groupwise
from gavel.judge.panel.ballot import Ballot
from gavel.judge.prompt.canonical_group import CanonicalGroup
from gavel.judge.stats import mean_and_error, order_agreement
from gavel.scenarios.judgement import GroupJudgement, GroupStatus, Judgement
from gavel.scenarios.trajectory import Trajectory


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
    judgements = [Judgement(reason=_failure(trajectory)) for trajectory in trajectories]
    answers = [
        Answer(
            b.order,
            b.juror,
            b.weight,
            {member: scored.score for member, scored in b.scores.items()},
            {member: scored.spread for member, scored in b.scores.items() if scored.spread is not None},
        )
        for b in ballots
        if b.scores is not None
    ]
    scores = aggregate(answers, len(group.members))
    for number, member in enumerate(group.members):
        if len(group.members) == 1 and not ballots:
            judgement = _lone(group, scores.get(number))
        else:
            judgement = _judgement(number, ballots, scores.get(number, ""), quorum)
        for copies, index in enumerate(member.indices):
            judgements[index] = judgement.model_copy(deep=True) if copies else judgement
    return judgements


def _failure(trajectory: Trajectory) -> str:
    return f"the rollout failed: {trajectory.status_reason or 'no reason is recorded'}"


def _lone(group: CanonicalGroup, score: AggregateScore | str | None) -> Judgement:
    if isinstance(score, AggregateScore):
        return Judgement(score=score.score, explanation="identical to an anchor")
    return Judgement(reason=_alone(group))


def _alone(group: CanonicalGroup) -> str:
    if len(group.members[0].indices) == 1:
        return "there is no other trajectory to compare it with"
    return "identical to every other member"


def _judgement(member: int, ballots: Sequence[Ballot], score: AggregateScore | str, quorum: float) -> Judgement:
    shown = [ballot for ballot in ballots if member in ballot.shown or member in ballot.refused]
    cast = {ballot.order: (ballot, vote) for ballot in shown if (vote := ballot.vote(member))}
    votes = [vote for _, vote in cast.values()]
    problem = next((ballot.problem for ballot in shown if ballot.scores is None), "")
    problem = next((ballot.unread[member] for ballot in shown if member in ballot.unread), problem)
    refusal = next((ballot.refused[member] for ballot in shown if member in ballot.refused), "")
    if not cast:
        return Judgement(reason=f"the judge model refuses its text: {refusal}" if refusal else f"no vote: {problem}")
    jurors = {ballot.juror: ballot.weight for ballot in shown}
    share = sum(jurors[juror] for juror in {ballot.juror for ballot, _ in cast.values()}) / sum(jurors.values())
    if share < quorum - 1e-9:
        return Judgement(votes=votes, reason=f"no quorum: {share:.0%} of the jury voted, not {quorum:.0%}: {problem}")
    if isinstance(score, str):
        return Judgement(votes=votes, reason=": ".join(filter(None, (score, problem))))
    weights = [ballot.weight for ballot, _ in cast.values()]
    return Judgement(
        score=score.score,
        standard_error=score.standard_error,
        degrees_of_freedom=score.degrees_of_freedom,
        explanation="" if score.typical is None else cast[score.typical][1].explanation,
        criteria={name: mean_and_error([v.criteria[name] for v in votes], weights)[0] for name in votes[0].criteria},
        votes=votes,
    )


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
        warnings=[*_warnings(ballots), *_disagreement(agreement)],
    )


def _warnings(ballots: Sequence[Ballot]) -> Iterator[str]:
    for ballot in ballots:
        if ballot.scores is None:
            yield f"order {ballot.order} is lost: {ballot.problem}"
            continue
        if ballot.refused:
            yield f"order {ballot.order}: the judge model refuses the text of {len(ballot.refused)} members"
        if ballot.shortened:
            yield f"order {ballot.order}: long texts were shortened to fit the context of {ballot.model}"


def _disagreement(agreement: float | None) -> Iterator[str]:
    if agreement is not None and agreement <= 0:
        yield (
            f"its orders contradict each other (mean tau {agreement:.2f}): the scores say little about which attempt "
            "is better; judge with more orders (--orders, at least 4) or a stronger judge model"
        )


def _status(members: Sequence[Judgement], group: CanonicalGroup) -> tuple[GroupStatus, str | None]:
    reasons = [member.reason for member in members if member.score is None]
    if not reasons:
        return "scored", None
    if len(group.members) == 1:
        survivor = len(group.members[0].indices) == 1 < len(members)
        return ("unscored" if survivor else "degenerate"), _alone(group)
    if len(reasons) == len(members):
        return "unscored", reasons[0]
    return "partial", f"{len(reasons)} of {len(members)} trajectories are unscored; {reasons[0]}"
