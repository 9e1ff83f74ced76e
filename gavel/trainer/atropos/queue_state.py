"""The queue as the event loop uses it: checks what comes, tells who waits, and says where the trainer stands.

With a learner of its own (`own`) the server is its trainer from the start. Without, a trainer registers over HTTP.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from gavel.base.errors import GavelError
from gavel.scenarios.atropos_group import MASKS, AtroposGroup
from gavel.trainer.atropos.batch_choice import choose_exactly
from gavel.trainer.atropos.group_queue import GroupQueue
from gavel.trainer.atropos.registration import TrainerRegistration, minimums
from gavel.trainer.data.training_batch import TokenSpace


class GroupRefusedError(GavelError):
    """A group can never be trained here."""


class RoleError(GavelError):
    """The server's own learner takes the batches, so no other trainer may."""


@dataclass(frozen=True, slots=True)
class OwnTrainer:
    """The server's own learner."""

    registration: TrainerRegistration
    space: TokenSpace


@dataclass(frozen=True, slots=True)
class Lent:
    """A batch on its way to a trainer."""

    number: int
    groups: list[AtroposGroup]


class QueueState:
    """One queue and its trainer."""

    def __init__(self, queue: GroupQueue, own: OwnTrainer | None = None) -> None:
        self.queue = queue
        self.own = own
        self._changed = asyncio.Event()
        self._lending = asyncio.Lock()

    @property
    def registration(self) -> TrainerRegistration | None:
        return self.queue.registration if self.own is None else self.own.registration

    @property
    def started(self) -> bool:
        """Whether environments may register."""
        return self.own is not None or self.queue.started

    async def accept(self, groups: Sequence[AtroposGroup]) -> list[bool]:
        """Stores the groups; whether each is new. Raises `GroupRefusedError`, and as `GroupQueue.accept` does."""
        for group in groups:
            self._check(group)
        is_new = await asyncio.to_thread(self.queue.accept, groups)
        self._changed.set()
        self._changed = asyncio.Event()
        return is_new

    async def wait_for_change(self, seconds: float) -> bool:
        """Returns when a group was accepted; False where none came for so long."""
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def lend(self) -> Lent | None:
        """The next batch for a trainer over HTTP: one whose answer did not reach it, else a new one.

        None while too few groups wait. `settle` has to be called for it: until then nobody else is lent one. Raises
        `RoleError`.
        """
        self.check_no_own("GET /batch")
        registration = self.queue.registration
        if registration is None:
            return None
        await self._lending.acquire()
        lent = None
        try:
            lent = await asyncio.to_thread(self._lend, registration)
        finally:
            if lent is None:
                self._lending.release()
        return lent

    async def settle(self, lent: Lent, delivered: bool) -> None:
        """Notes whether the trainer has the batch; where not, the next request gets the same."""
        try:
            if delivered:
                await asyncio.to_thread(self.queue.delivered, lent.number)
        finally:
            self._lending.release()

    def _lend(self, registration: TrainerRegistration) -> Lent | None:
        queue = self.queue
        if not queue.started:
            queue.start()
        if (known := queue.lent()) is None:
            least = minimums(queue.envs, registration.batch_size)
            chosen = choose_exactly(queue.waiting, registration.batch_size, least)
            if chosen is None:
                return None
            ids = [group.id for group in chosen]
            known = queue.lend(ids, queue.step + 1), ids
        number, ids = known
        return Lent(number, [group for group, _ in queue.read(ids)])

    def check_no_own(self, request: str) -> None:
        """Raises `RoleError` where the server has a learner of its own."""
        if self.own is not None:
            raise RoleError(
                f"{request} is refused: this server's own learner takes the batches",
                "Start `gavel serve-atropos` without --model to hand them to another trainer.",
            )

    def _check(self, group: AtroposGroup) -> None:
        registration = self.registration
        if self.own is None:
            if registration is not None and len(group) > registration.batch_size:
                raise GroupRefusedError(
                    f"the group has {len(group)} members, and a batch {registration.batch_size}: no batch can hold it",
                    "Make groups smaller, or let the trainer register with a larger batch_size.",
                )
            return
        space = self.own.space
        longest = max(map(len, group.tokens))
        if longest > space.max_context:
            raise GroupRefusedError(
                f"a member has {longest:,} tokens, and the learner takes {space.max_context:,}",
                "Set the environment's max_token_length, or raise --max-context.",
            )
        highest = max(map(max, group.tokens))
        if highest >= space.vocabulary:
            raise GroupRefusedError(
                f"a member holds the token {highest}, and the model has {space.vocabulary:,} tokens",
                "Give the environment the tokenizer of the model that is trained (tokenizer_name).",
            )
        if told := group.other_targets():
            raise GroupRefusedError(told, MASKS)
