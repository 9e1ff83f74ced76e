"""What the wires of other systems share. They answer with numbers: what is not scored is a refusal, never a number."""

from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.http.problems import Problem
from gavel.judge.service.schemas.records import Record
from gavel.scenarios.judgement import Judgement


def size_of_groups(config: ServiceConfig, named: int | None = None) -> int:
    """Members of a group: as named, else as set. Raises `Problem` when neither says it."""
    size = named or config.group_size
    if size is None:
        raise Problem(
            422,
            "no-group-size",
            "the request does not say how many members a group has.",
            "Set group_size in the service's settings (GAVEL_SERVICE_GROUP_SIZE=8), or with slime ?size=8 in the URL.",
        )
    return size


def rewards_of(record: Record) -> list[float]:
    """The scores of all members, in the request's order. Raises `Problem` when one has none."""
    verdict = judged(record)
    return [reward_of(member, record) for member in verdict]


def judged(record: Record | None) -> list[Judgement]:
    """The members of a judged group. Raises `Problem` for one that is not finished, or failed."""
    if record is None or record.verdict is None:
        raise Problem(
            503,
            "not-judged-yet",
            "the group is not judged yet; the request is stored, and judging goes on.",
            "Send the same request again.",
            {"Retry-After": "5"},
        )
    if record.verdict.group is None:
        failed = record.verdict
        raise Problem(502, "judge-failed", failed.problem or "", failed.remedy, {}, {"judgement": record.id})
    return record.verdict.members


def reward_of(member: Judgement, record: Record) -> float:
    """The member's score. Raises `Problem` when it has none."""
    if member.score is None:
        group = record.verdict.group if record.verdict else None
        reason = member.reason or (group.reason if group else None) or "the judge gave no score"
        is_its_own = record.members == 1 or record.status == "degenerate"  # nothing to compare: no judge is to blame
        raise Problem(
            422 if is_its_own else 502,
            "unscored",
            f"a member is not scored: {reason}.",
            f"GET /v1/judgements/{record.id} has all members; this wire can answer with numbers only.",
            {},
            {"judgement": record.id},
        )
    return member.score
