"""The stored result of judging one group: the whole judgement with its votes, from which every answer is made."""

from collections.abc import Collection

from pydantic import BaseModel

from gavel.judge.errors import JudgeError
from gavel.judge.service.schemas.score_bodies import FinishedStatus, JudgementOut, MemberOut
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judgement import GroupJudgement, Judgement


class Verdict(BaseModel):
    """What a judge said of a group, or why it could not be asked."""

    ids: list[str]
    """Of the members, in the request's order."""
    members: list[Judgement]
    group: GroupJudgement | None = None
    """None: the judge could not be asked."""
    problem: str | None = None
    remedy: str = ""
    questions: list[str] = []
    """Keys of further replies: those to questions that no vote was read from."""

    @classmethod
    def of(cls, ids: list[str], judged: TrajectoryGroup) -> "Verdict":
        """That of a judged group."""
        members = [trajectory.judgement or Judgement(reason="not judged") for trajectory in judged.trajectories]
        return cls(ids=ids, members=members, group=judged.judgement)

    @classmethod
    def failed(cls, ids: list[str], error: JudgeError) -> "Verdict":
        """That of a group whose judge could not be asked."""
        members = [Judgement(reason=error.message) for _ in ids]
        return cls(ids=ids, members=members, problem=error.message, remedy=error.remedy)

    @classmethod
    def unscored(cls, ids: list[str], reason: str) -> "Verdict":
        """That of a group which is not judged."""
        group = GroupJudgement(status="unscored", reason=reason)
        return cls(ids=ids, members=[Judgement(reason=reason) for _ in ids], group=group)

    @property
    def status(self) -> FinishedStatus:
        return "failed" if self.group is None else self.group.status

    @property
    def reply_keys(self) -> set[str]:
        """Keys of the stored replies to what was asked for it."""
        read = {vote.reply_key for member in self.members for vote in member.votes if vote.reply_key}
        return read.union(self.questions)

    def with_questions(self, keys: Collection[str]) -> "Verdict":
        """With all questions that were asked for it."""
        further = sorted(set(keys) - self.reply_keys)
        return self.model_copy(update={"questions": further}) if further else self

    def bare(self) -> "Verdict":
        """Scores and costs alone, without what may quote a transcript: explanations and votes."""
        members = [
            Judgement(
                score=member.score,
                standard_error=member.standard_error,
                degrees_of_freedom=member.degrees_of_freedom,
                flags=member.flags,
                reason=member.reason and "erased",
            )
            for member in self.members
        ]
        group = self.group and self.group.model_copy(
            update={"settings": None, "warnings": [], "reason": self.group.reason and "erased"}
        )
        return self.model_copy(
            update={"members": members, "group": group, "problem": self.problem and "erased", "questions": []}
        )

    def answer(self, judgement: str, project: str, created_at: float, finished_at: float) -> JudgementOut:
        """The answer over HTTP."""
        whole = self.group or GroupJudgement(status="unscored", reason=self.problem)
        return JudgementOut(
            id=judgement,
            status=self.status,
            reason=whole.reason,
            scores=[member.score for member in self.members],
            members=[
                MemberOut(
                    id=name,
                    score=member.score,
                    standard_error=member.standard_error,
                    explanation=member.explanation,
                    flags=member.flags,
                    reason=member.reason,
                )
                for name, member in zip(self.ids, self.members, strict=True)
            ],
            calls=whole.calls,
            cached_calls=whole.cached_calls,
            prompt_tokens=whole.prompt_tokens,
            completion_tokens=whole.completion_tokens,
            cost_usd=whole.cost_usd,
            models=whole.models,
            warnings=whole.warnings,
            project=project,
            created_at=created_at,
            finished_at=finished_at,
        )
