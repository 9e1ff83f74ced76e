"""How far the judging of one group has come, for whoever watches it.

    progress = Progress()
    task = asyncio.create_task(judge.score(group, progress=progress))
    progress.answered, progress.calls         (3, 8)

The votes are those that came in so far; what they come to is decided when all have.
"""

from dataclasses import dataclass, field

from gavel.judge.panel.ballot import Ballot
from gavel.judge.prompt.canonical_group import CanonicalGroup
from gavel.scenarios.judgement import Vote


@dataclass(slots=True)
class Progress:
    """Filled in by `Judge.score`."""

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
