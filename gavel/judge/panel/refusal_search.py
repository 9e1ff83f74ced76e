"""Refusals: finds the members whose text a judge model refuses, so that the others are scored without them.

A refused prompt costs its group every vote, so one member's text could veto a bad group. The search halves the members
that were refused together until one is left, and confirms that one on its own:

    {0 1 2 3 4 5 6 7} refused   {0 1 2 3} answered   {4 5} refused   {4} answered   {5} refused   -> member 5

It takes about log2(n) prompts for each refused member of n. The calls of one juror share what was found. A model that
refuses everything, or only texts together, is found out in a bounded number of prompts: nobody is blamed then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gavel.judge.panel.ballot import Ballot

Outcome = Literal["answered", "refused", "failed"]
Ask = Callable[[tuple[int, ...]], Awaitable[Ballot]]
"""Asks a judge model about these members alone."""

_ALONE = 4
"""Members refused one by one, with no prompt ever answered, that show that the model refuses whatever it is shown."""


@dataclass(slots=True)
class Refusals:
    """What one juror refuses of one group; shared by the juror's concurrent calls."""

    group: int
    """Number of members of the group."""
    members: dict[int, str] = field(default_factory=dict[int, str])
    """Members whose text is refused, with the model's words."""
    everything: bool = False
    """Whether the juror has refused all that it was shown."""
    _cleared: set[int] = field(default_factory=set[int])
    """Members of a prompt that was answered."""
    _fruitless: bool = False
    """Whether a search found no member that is refused on its own."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def answered(self, shown: Sequence[int]) -> None:
        """A prompt that showed these members was answered."""
        self._cleared.update(shown)

    async def narrow_down(self, shown: Sequence[int], ask: Ask) -> bool:
        """Whether a refused member is known among `shown`, which were refused together; searches for one if not."""
        async with self._lock:
            if self.everything:
                return False
            if self.members.keys() & set(shown):
                return True  # found while this call waited
            if self._fruitless:
                return False
            return await self._search(shown, ask)

    async def _search(self, shown: Sequence[int], ask: Ask) -> bool:
        suspects = [member for member in sorted(shown) if member not in self._cleared]
        confirmed: Sequence[int] = ()
        while len(suspects) > 1:
            half = suspects[: len(suspects) // 2]
            match await self._outcome(half, ask):
                case "answered":
                    suspects = suspects[len(half) :]
                case "refused":
                    suspects = confirmed = half
                case "failed":
                    return False
        if suspects and suspects != confirmed and await self._outcome(suspects, ask) == "failed":
            return False
        if not self.members.keys() & set(suspects):
            self._fruitless = True
            return False
        if not self._cleared:
            await self._try_others(ask)
        return not self.everything

    async def _try_others(self, ask: Ask) -> None:
        """Asks about further members one by one until one is answered: perhaps the model refuses everything."""
        others = [member for member in range(self.group) if member not in self.members]
        for member in others[: _ALONE - 1]:
            if await self._outcome([member], ask) != "refused":
                return
        self.everything = True

    async def _outcome(self, members: Sequence[int], ask: Ask) -> Outcome:
        ballot = await ask(tuple(members))
        if ballot.scores is not None:
            self.answered(members)
            return "answered"
        if not ballot.refusal:
            return "failed"
        if len(members) == 1:
            self.members[members[0]] = ballot.refusal
        return "refused"
