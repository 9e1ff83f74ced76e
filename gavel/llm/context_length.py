"""How long a prompt may be: the context of an endpoint, which its refusals teach, less the reply."""

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContextLength:
    """Of one endpoint, in tokens of prompt and reply."""

    endpoint: Hashable
    assumed: int
    """Before the endpoint has refused a prompt."""

    @property
    def tokens(self) -> int:
        return _learned.get(self.endpoint, self.assumed)

    def room(self, reply: int) -> int:
        """Max prompt tokens, in `cl100k_base`, beside a reply of `reply` tokens, with a margin for other tokenizers."""
        return int((self.tokens - min(reply, self.tokens // 2)) / _TOKENIZER_MARGIN)

    def shrink(self, room: int, sent: int, reply: int, limit: int | None) -> None:
        """Lowers the length: a prompt of `sent` tokens, made for `room` tokens, was refused as too long.

        `limit`: the context that the server names, in tokens; None = it names none.
        """
        if self.room(reply) < room:
            return  # another call has lowered it
        half = int(_SHRINK_FACTOR * sent * _TOKENIZER_MARGIN) + reply
        smaller = half if half < self.tokens else int(_SHRINK_FACTOR * self.tokens)
        _learned[self.endpoint] = limit if limit is not None and limit < self.tokens else smaller


DEFAULT_CONTEXT = 128_000
"""Context length of a model that LiteLLM's table does not list."""
_SHRINK_FACTOR = 0.5
"""Factor by which a refused prompt is shortened when the server names no limit."""
_TOKENIZER_MARGIN = 1.2
"""Max ratio of a model's own token count to that of `cl100k_base`."""

_learned: dict[Hashable, int] = {}
"""Context lengths learned from endpoints' refusals, of this process."""
