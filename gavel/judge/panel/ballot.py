"""A ballot: one call of one juror, what it showed, and the scores that came back.

A lost ballot has no scores: a failed call never becomes a number.
"""

from collections import Counter
from dataclasses import dataclass, field

from gavel.judge.errors import ContextTooSmallError
from gavel.judge.prompt.canonical_group import CanonicalGroup
from gavel.judge.reply.verdict import Scored
from gavel.llm.types import Reply
from gavel.prompts import render, template_id
from gavel.scenarios.judgement import Vote


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
    """By member; None = the ballot is lost."""
    problem: str = ""
    """The last failure."""
    refusal: str = ""
    """Why a model refused to judge what the ballot shows; empty = none did."""
    refused: dict[int, str] = field(default_factory=dict[int, str])
    """Members that were left out of `shown` because the juror refuses their text, with its words."""
    unread: dict[int, str] = field(default_factory=dict[int, str])
    """Members that were shown and have no score in the reply, with the reason."""
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

    def render(self, template: str, **values: object) -> str:
        """The rendered template, whose id is recorded in `prompt_ids`."""
        self.prompt_ids.append(template_id(template))
        return render(template, **values)

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
            reply_key=self.reply_key,
        )


@dataclass(slots=True)
class Progress:
    """How far the judging of one group has come; `Judge.score` fills it in.

    The votes are those that came in so far; what they come to is decided when all have.
    """

    calls: int = 0
    """Ballots that the judge asks for; 0 until that is decided."""
    group: CanonicalGroup | None = None
    """The members as ballots show them."""
    ballots: list[Ballot] = field(default_factory=list[Ballot])
    """Those that are over, also without a usable reply."""

    @property
    def answered(self) -> int:
        """Number of ballots that are over."""
        return len(self.ballots)

    def votes(self) -> dict[int, list[Vote]]:
        """The votes so far, by the index of the trajectory in the group."""
        found: dict[int, list[Vote]] = {}
        for ballot in self.ballots:
            for number, member in enumerate(self.group.members if self.group else ()):
                if (vote := ballot.vote(number)) is not None:
                    for index in member.indices:
                        found.setdefault(index, []).append(vote)
        return found
