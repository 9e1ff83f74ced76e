"""How a juror's calls on one group use the server's prompt cache: what they begin with alike, and which goes ahead.

All orders of a group have the same beginning, which a server charges at a tenth to a half of the price when it is in
its cache, and it is there when the first request is being answered. So the first call goes ahead, and the others follow
when it is answered, or a second after it was sent.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Literal

from gavel.judge.prompt.call_prompt import Prompt
from gavel.judge.prompt.token_count import count_tokens
from gavel.llm.client import Client
from gavel.llm.message_parts import text_of
from gavel.llm.prompt_cache import NO_PREFIX, CachedPrefix, Lead, caches_prompts, min_cached_tokens

CacheName = Literal["auto", "lead", "off"]
"""Whether a juror's first call on a group goes ahead: "auto" where that saves money, "lead" always, "off" never."""


class PromptCaching:
    """The prompt caching of one juror's calls on one group."""

    def __init__(self, cache: CacheName, calls_shown: Sequence[tuple[int, ...]], first: int) -> None:
        """`calls_shown`: the members that each of the juror's calls shows. `first`: the number of the first call."""
        self._cache: CacheName = cache if len(calls_shown) > 1 else "off"
        self._same_members = len(set(map(frozenset, calls_shown))) == 1
        self._first = first
        self._lead = Lead()
        self._long_enough: dict[tuple[str, int], bool] = {}
        """Whether a beginning of so many characters is cached, by model: it is counted once for all calls."""

    @contextmanager
    def call(self, number: int) -> Generator[None]:
        """The block makes the call of this number."""
        try:
            yield
        finally:
            if number == self._first:
                self._lead.answered()

    async def prefix(self, number: int, prompt: Prompt, client: Client) -> CachedPrefix:
        """What the call has in common with the juror's other calls. Returns when it may be sent."""
        if self._cache == "off":
            return NO_PREFIX
        characters = self._cached_characters(prompt, client)
        if number == self._first:
            return CachedPrefix(len(prompt.messages) - 1, characters, self._lead.sent)
        if characters or self._cache == "lead":
            await self._lead.warm()
        return CachedPrefix(len(prompt.messages) - 1, characters)

    def _cached_characters(self, prompt: Prompt, client: Client) -> int:
        """Characters of the last message that the model's server keeps in its cache, as far as LiteLLM knows."""
        if not caches_prompts(client.model):
            return 0
        characters = prompt.same_in_orders
        if not self._same_members:  # calls with other members are shortened to other lengths
            characters = 0 if prompt.shortened else prompt.same_in_group
        key = client.name, characters
        if key not in self._long_enough:
            *before, last = (text_of(message) for message in prompt.messages)
            needed = min_cached_tokens(client.model)
            shared = "\n".join([*before, last[:characters]])
            self._long_enough[key] = count_tokens(shared, stop_at=needed) >= needed
        return characters if self._long_enough[key] else 0
