"""Which of several samplers gets a request: the one that holds its conversation, unless it is much busier; else the
least loaded.

A sampler keeps the keys and values of what it has computed, so a conversation's next turn is cheapest where its last
one was sampled. Conversations are told apart by hashes of their tokens: what a wrong one costs is time, no token.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from itertools import accumulate

KEPT = 16_384
"""Conversations that are remembered; those that went on longest ago are forgotten first."""
FEWEST_MORE = 4
_SHARE_MORE = 2


def much_busier(load: int, least: int) -> bool:
    """Whether a sampler with `load` requests has so many more than the least loaded that a conversation leaves it."""
    return load > least + max(FEWEST_MORE, least // _SHARE_MORE)


class PoolSchedule:
    """The requests of each sampler, and the conversations that it holds. Not thread-safe."""

    def __init__(self, samplers: int, kept: int = KEPT) -> None:
        self.loads = [0] * samplers
        """Requests in flight."""
        self._holders: OrderedDict[int, int] = OrderedDict()
        """Hash of a conversation's tokens -> its sampler."""
        self._kept = kept

    def place(self, prompt_ids: Sequence[int], version: int, among: Collection[int]) -> int:
        """The sampler, of those `among`, that gets a request with this prompt; it counts as loaded until `done`.

        `version`: of the adapter, since what is held was computed with one. Raises `ValueError` for nothing to choose
        among.
        """
        least = min(among, key=lambda sampler: (self.loads[sampler], sampler))
        holder = self._holder(prompt_ids, version, among)
        chosen = least if holder is None or much_busier(self.loads[holder], self.loads[least]) else holder
        self.loads[chosen] += 1
        return chosen

    def done(self, sampler: int) -> None:
        """A request that was placed there has ended, in whatever way."""
        self.loads[sampler] -= 1

    def hold(self, sampler: int, prompt_ids: Sequence[int], token_ids: Sequence[int], version: int) -> None:
        """The sampler holds this conversation. Its prompt is remembered too: chat formats that rewrite an earlier turn
        go on from there."""
        states = _states([*prompt_ids, *token_ids], version)
        for state in (states[len(prompt_ids) - 1], states[-1]):
            self._holders[state] = sampler
            self._holders.move_to_end(state)
        while len(self._holders) > self._kept:
            self._holders.popitem(last=False)

    def forget(self, sampler: int) -> None:
        """The sampler has lost what it held."""
        for state in [state for state, holder in self._holders.items() if holder == sampler]:
            del self._holders[state]

    def _holder(self, prompt_ids: Sequence[int], version: int, among: Collection[int]) -> int | None:
        """Who holds the longest conversation that the prompt extends."""
        if not self._holders:
            return None
        found = (self._holders.get(state) for state in reversed(_states(prompt_ids, version)))
        return next((holder for holder in found if holder in among), None)


def _states(token_ids: Sequence[int], version: int) -> list[int]:
    """The hash of each prefix, of one token and more."""
    return list(accumulate(token_ids, lambda state, token: hash((state, token)), initial=hash((version,))))[1:]
