"""The score of one member, as a client of the service is answered."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from gavel.scenarios.judgement import GroupStatus, Judgement


@dataclass(frozen=True, slots=True)
class MemberScore:
    """A member's judgement, and what became of its group."""

    judgement: Judgement
    status: GroupStatus
    """That of the group: the same for all its members."""
    record: str
    """Id of the group's judgement at the service."""
    arrived: int
    """Members that were judged together; fewer than expected when the group's time was over."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """The answer of `/v1/groups/{group}/members`."""
        return cls(judgement_of(answer), answer["status"], answer["judgement"], answer["arrived"])


def judgement_of(answer: Mapping[str, Any]) -> Judgement:
    """The judgement in the answer about a member."""
    return Judgement(
        score=answer["score"],
        standard_error=answer["standard_error"],
        explanation=answer["explanation"],
        flags=answer["flags"],
        reason=answer["reason"],
    )
