"""What the calls of a judge come to: ballots -> judgements -> a judged copy of the group.

A ballot that was lost has no scores, and a member without votes has none either: no step here can make a number
that no judge gave.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from gavel.judge.errors import ContextTooSmallError
from gavel.judge.panel.aggregate import Answer, Combine, Standing, groupwise
from gavel.judge.panel.schedule import mean_and_error
from gavel.judge.prompt.canonical import CanonicalGroup
from gavel.judge.reply.verdict import Scored
from gavel.llm.types import Reply
from gavel.prompts import render, template_id
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, GroupStatus, Judgement, Vote
from gavel.scenarios.trajectory import Trajectory


@dataclass(slots=True)
class Ballot:
    """One order of presentation, put before one juror."""

    order: int
    row: tuple[int, ...]
    """Members of the canonical group as they are shown; in a large group only some."""
    model: str
    juror: int = 0
    """Index of the juror."""
    weight: float = 1.0
    scores: dict[int, Scored] | None = None
    """By member; None = the ballot is lost."""
    problem: str = ""
    """What went wrong last."""
    no_room: ContextTooSmallError | None = None
    """Why the last model was not asked."""
    shortened: bool = False
    """Not all text was shown, for want of room."""
    calls: int = 0
    replies: list[Reply] = field(default_factory=list)
    prompt_ids: list[str] = field(default_factory=list)
    repairs: Counter[str] = field(default_factory=Counter)
    """What had to be repaired to read the scores, by kind."""

    def render(self, template: str, **values: object) -> str:
        """The filled template, remembered as used."""
        self.prompt_ids.append(template_id(template))
        return render(template, **values)

    def vote(self, member: int) -> Vote | None:
        if self.scores is None or member not in self.scores:
            return None
        scored = self.scores[member]
        slot = self.row.index(member)
        return Vote(
            score=scored.score,
            slot=slot,
            order=self.order,
            model=self.model,
            explanation=scored.explanation,
            criteria=dict(scored.criteria),
        )


def judge_members(
    trajectories: Sequence[Trajectory],
    group: CanonicalGroup,
    ballots: Sequence[Ballot],
    quorum: float = 0.0,
    combine: Combine = groupwise,
) -> list[Judgement]:
    """A judgement for each trajectory, in order; identical trajectories share votes and score.

    `quorum`: the least share of the jury's weight that must have voted for a member, or it is unscored. `combine`:
    what votes come to.
    """
    judgements = [Judgement(reason=_failure(trajectory)) for trajectory in trajectories]
    answers = [
        Answer(b.order, b.juror, b.weight, {member: scored.score for member, scored in b.scores.items()})
        for b in ballots
        if b.scores is not None
    ]
    standings = combine(answers, len(group.members))
    for number, member in enumerate(group.members):
        if len(group.members) == 1:
            judgement = _lone(group, standings.get(number))
        else:
            judgement = _judgement(number, ballots, standings.get(number, ""), quorum)
        for copies, index in enumerate(member.indices):
            judgements[index] = judgement.model_copy(deep=True) if copies else judgement
    return judgements


def _failure(trajectory: Trajectory) -> str:
    return f"the rollout failed: {trajectory.status_reason or 'no reason is recorded'}"


def _lone(group: CanonicalGroup, standing: Standing | str | None) -> Judgement:
    if isinstance(standing, Standing):
        return Judgement(score=standing.score, explanation="identical to an anchor")
    return Judgement(reason=_alone(group))


def _alone(group: CanonicalGroup) -> str:
    if len(group.members[0].indices) == 1:
        return "there is no other trajectory to compare it with"
    return "identical to every other member"


def _judgement(member: int, ballots: Sequence[Ballot], standing: Standing | str, quorum: float) -> Judgement:
    shown = [ballot for ballot in ballots if member in ballot.row]
    cast = {ballot.order: (ballot, vote) for ballot in shown if (vote := ballot.vote(member))}
    votes = [vote for _, vote in cast.values()]
    problem = next((ballot.problem for ballot in shown if ballot.scores is None), "")
    if not cast:
        return Judgement(reason=f"no vote: {problem}")
    jurors = {ballot.juror: ballot.weight for ballot in shown}
    share = sum(jurors[juror] for juror in {ballot.juror for ballot, _ in cast.values()}) / sum(jurors.values())
    if share < quorum - 1e-9:
        return Judgement(votes=votes, reason=f"no quorum: {share:.0%} of the jury voted, not {quorum:.0%}: {problem}")
    if isinstance(standing, str):
        return Judgement(votes=votes, reason=": ".join(filter(None, (standing, problem))))
    weights = [ballot.weight for ballot, _ in cast.values()]
    return Judgement(
        score=standing.score,
        standard_error=standing.standard_error,
        explanation="" if standing.typical is None else cast[standing.typical][1].explanation,
        criteria={name: mean_and_error([v.criteria[name] for v in votes], weights)[0] for name in votes[0].criteria},
        votes=votes,
    )


def judge_group(members: Sequence[Judgement], group: CanonicalGroup, ballots: Sequence[Ballot]) -> GroupJudgement:
    """The group's status, and what its calls cost."""
    status, reason = _status(members, group)
    all_replies = [reply for ballot in ballots for reply in ballot.replies]
    replies = [reply for reply in all_replies if not reply.cached]
    cached_calls = len(all_replies) - len(replies)
    calls = sum(ballot.calls for ballot in ballots) - cached_calls
    costs = [reply.cost_usd for reply in replies if reply.cost_usd is not None]
    return GroupJudgement(
        status=status,
        reason=reason,
        calls=calls,
        cached_calls=cached_calls,
        lost_orders=sum(ballot.scores is None for ballot in ballots),
        prompt_tokens=sum(reply.prompt_tokens for reply in replies),
        completion_tokens=sum(reply.completion_tokens for reply in replies),
        cost_usd=sum(costs) if len(costs) == calls else None,
        repairs=dict(sum((ballot.repairs for ballot in ballots), Counter())),
        warnings=list(_warnings(ballots)),
    )


def _warnings(ballots: Sequence[Ballot]) -> Iterator[str]:
    for ballot in ballots:
        if ballot.scores is None:
            yield f"order {ballot.order} is lost: {ballot.problem}"
        elif ballot.shortened:
            yield f"order {ballot.order}: long texts were shortened to fit the context of {ballot.model}"


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


def with_judgements(group: TrajectoryGroup, members: Sequence[Judgement], whole: GroupJudgement) -> TrajectoryGroup:
    """A copy of the group with judgements, and their scores as rewards.

    Containers are copied; messages and choices, which nobody changes, are shared. The reward that a trajectory came
    with is kept in `metrics["independent_reward"]`.
    """
    judged = [_with_judgement(*pair) for pair in zip(group.trajectories, members, strict=True)]
    return group.model_copy(
        update={
            "trajectories": judged,
            "metadata": deepcopy(group.metadata),
            "metrics": dict(group.metrics),
            "logs": list(group.logs),
            "exceptions": list(group.exceptions),
            "judgement": whole,
        }
    )


def _with_judgement(trajectory: Trajectory, judgement: Judgement) -> Trajectory:
    metrics = dict(trajectory.metrics)
    if trajectory.reward is not None and trajectory.judgement is None:
        metrics["independent_reward"] = trajectory.reward
    return trajectory.model_copy(
        update={
            "messages_and_choices": list(trajectory.messages_and_choices),
            "additional_histories": list(trajectory.additional_histories),
            "metadata": deepcopy(trajectory.metadata),
            "logs": list(trajectory.logs),
            "metrics": metrics,
            "reward": judgement.score,
            "judgement": judgement,
        }
    )


def unscored(group: TrajectoryGroup, reason: str) -> TrajectoryGroup:
    """A copy of the group in which nobody has a score, for one reason."""
    members = [Judgement(reason=reason) for _ in group.trajectories]
    return with_judgements(group, members, GroupJudgement(status="unscored", reason=reason))
