"""The chunks of one streamed choice.

OpenAI's client joins the deltas: texts and lists grow, so a turn's `token_ids` and `token_logprobs` come in them, and
end up in its message; of the other fields of a choice it keeps those of the first chunk. The last chunk has all fields
of the choice as it is without streaming, for readers of the chunks themselves.
"""

from collections.abc import Callable, Sequence
from typing import Any

from gavel.llm.types import Message
from gavel.trainer.engines.protocol import Sampled
from gavel.trainer.serving.chat_objects import choice_object, logprobs_object
from gavel.trainer.serving.chat_request import ChatRequest
from gavel.trainer.serving.streamed_text import StreamedText
from gavel.trainer.serving.turn_cache import Prompt

_OF_THE_WHOLE = ("message", "token_ids", "token_logprobs", "logprobs", "finish_reason", "sample_id")
"""Fields of a choice that are not known when it begins."""


class ChoiceChunks:
    """Makes the chunks of a choice, without what they share."""

    def __init__(
        self,
        asked: ChatRequest,
        index: int,
        prompt: Prompt,
        decode: Callable[[Sequence[int]], str],
        text: StreamedText,
    ) -> None:
        self._asked = asked
        self._index = index
        self._prompt = prompt
        self._decode = decode
        self._text = text
        self._told = 0
        """Tokens."""
        self.opened = False

    def more(self, turn: Sampled) -> list[dict[str, Any]]:
        """The chunks of what is new in a turn that is still being sampled."""
        found = [] if self.opened else [self._opening(turn)]
        pieces = self._text.more(turn.token_ids)
        return found if pieces is None else [*found, self._chunk(pieces, turn)]

    def rest(self, reply: Message, turn: Sampled, sample_id: str) -> list[dict[str, Any]]:
        """The last chunks; `reply` becomes what was shown."""
        found = [] if self.opened else [self._opening(turn)]
        delta: dict[str, Any] = {**self._text.rest(reply)}
        if calls := reply.get("tool_calls"):
            delta["tool_calls"] = [{"index": at} | call for at, call in enumerate(calls)]
        choice = choice_object(self._asked, self._index, reply, self._prompt, turn, self._decode)
        choice["sample_id"] = sample_id
        del choice["message"], choice["logprobs"]
        return [*found, choice | self._chunk(delta, turn) | {"finish_reason": choice["finish_reason"]}]

    def _opening(self, turn: Sampled) -> dict[str, Any]:
        self.opened = True
        empty = Sampled([], [], "stop", turn.adapter_version)
        choice = choice_object(self._asked, self._index, {}, self._prompt, empty, self._decode)
        known = {name: value for name, value in choice.items() if name not in _OF_THE_WHOLE}
        return known | {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def _chunk(self, delta: dict[str, Any], turn: Sampled) -> dict[str, Any]:
        told, self._told = self._told, len(turn.token_ids)
        new_ids, new_logprobs = turn.token_ids[told:], turn.logprobs[told:]
        logprobs = None
        if self._asked.token_ids:
            delta = delta | {"token_ids": new_ids}
        if self._asked.logprobs and self._asked.compact:
            delta = delta | {"token_logprobs": new_logprobs}
        elif self._asked.logprobs and new_ids:
            logprobs = logprobs_object(turn, self._decode, told)
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
