"""Context lengths: an endpoint's context, learned from its rejections; Ollama's `num_ctx`, which a request must set;
and prompts that a server truncates silently. Ollama drops what exceeds its context (4,096 tokens, unless `num_ctx` is
set) and answers 200, but counts far fewer tokens than the prompt has; and a verdict on half of a prompt is no verdict.

The count is compared with that of a compact tokenizer: `cl100k_base` for ASCII, less for other scripts. Near half of
that is a cut; and on a server of the user's own, one token too few that equals a usual context length.
"""

import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from math import inf
from typing import Any

from gavel.llm.errors import ContextError
from gavel.llm.providers import cl100k
from gavel.llm.types import IMAGE_TOKENS, Message, Reply, count_images, text_of

_SMALLEST_CONTEXT = 512
"""Smallest plausible context; a smaller prompt count excludes, for example, cached tokens."""
_UNEXPLAINED = 0.55
_CONTEXTS = frozenset(2**power for power in range(11, 18))
PIECE = 4096
"""Characters encoded at once: some tokenizers are quadratic in the length of a word."""
_MOST_BYTES_PER_TOKEN = 5
"""Above this ratio a prompt can be truncated and its text is tokenized, which takes longer; below, nothing can be
missing."""
_RUN = re.compile(r"(.)\1{7,}", re.DOTALL)
"""Long runs of one character, whose token counts differ widely between vocabularies."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_ACCENTED_SHARE, _CHARACTERS_PER_TOKEN = 0.005, 4.5
"""Share of other characters from which ASCII letters may be a language that `cl100k_base` encodes poorly, such as
Turkish or Vietnamese, and characters per token in newer vocabularies."""
_PER_CJK_CHARACTER, _PER_OTHER_CHARACTER = 0.6, 0.24
"""Tokens of a compact tokenizer for Chinese, Japanese and Korean text, and for other scripts than ASCII."""
_REPLY_TOKENS, _BYTES_PER_TOKEN = 4_096, 2.5
"""Of a request to Ollama: tokens reserved for a reply and its thinking, unless the user sets its length, and bytes per
token in dense text, such as numbers; prose has four."""
_STEPS = tuple(sorted(size * 2**power for power in range(13, 21) for size in (1, 1.5)))
"""Context lengths requested of Ollama: few, since it reloads a model when the context changes."""
DEFAULT_CONTEXT = 128_000
"""Context length of a model that LiteLLM's table does not list."""
_TOKENIZER_MARGIN = 1.2
"""Max ratio of a model's own token count to that of `cl100k_base`."""

contexts: dict[Hashable, int] = {}
"""Context lengths learned from endpoints' rejections, in this process: tokens of prompt and reply."""


def room_in(context: int, reply: int) -> int:
    """Max prompt tokens, in `cl100k_base`, with room for `reply` reply tokens and a margin for other tokenizers."""
    return int((context - min(reply, context // 2)) / _TOKENIZER_MARGIN)


def shrink_context(endpoint: Hashable, context: int, room: int, sent: int, reply: int, limit: int | None) -> None:
    """Lowers the endpoint's `context`: a prompt of `sent` tokens, made to fit `room` tokens, was rejected as too long.

    `limit`: the context that the server names, in tokens; None = it names none.
    """
    if room_in(context, reply) < room:
        return  # another call has lowered it already
    half = int(0.5 * sent * _TOKENIZER_MARGIN) + reply
    smaller = half if half < context else context // 2
    contexts[endpoint] = limit if limit is not None and limit < context else smaller


def context_options(
    model: str, params: Mapping[str, Any], messages: Sequence[Message], longest: int, completion: int | None
) -> dict[str, int]:
    """`num_ctx` for a request to Ollama: room for prompt and reply, at most `longest` tokens; empty for other models.

    The user's own `num_ctx` is kept. `completion`: the reply's length, if the user sets it.
    """
    if not model.startswith(("ollama/", "ollama_chat/")) or "num_ctx" in params:
        return {}
    size = sum(len(text_of(message).encode("utf-8", "surrogatepass")) for message in messages)
    needed = size / _BYTES_PER_TOKEN + IMAGE_TOKENS * count_images(messages) + (completion or _REPLY_TOKENS)
    return {"num_ctx": int(min(next((step for step in _STEPS if step >= needed), needed), longest))}


class PromptCutError(ContextError):
    """The server answered after reading only a part of the prompt."""

    def __init__(self, message: str, remedy: str, limit: int, reply: Reply) -> None:
        super().__init__(message, remedy, limit)
        self.reply = reply
        """The reply is paid for and unusable."""


def check_not_cut(
    model: str, reply: Reply, messages: Sequence[Message], *, own_server: bool, limits: Collection[int] = ()
) -> None:
    """Raises `PromptCutError` if the server counted far fewer tokens than the messages have.

    `own_server`: whether it is a server of the user's own, whose context may have any length. `limits`: its known
    context lengths, besides the usual ones.
    """
    counted = reply.prompt_tokens + reply.cached_prompt_tokens  # some servers do not count these
    if reply.prompt_tokens < _SMALLEST_CONTEXT:
        return
    text = "\n".join(map(text_of, messages))
    at_limit = own_server and (counted in _CONTEXTS or counted + 1 in _CONTEXTS or counted in limits)
    if not at_limit and counted * _MOST_BYTES_PER_TOKEN > len(text.encode("utf-8", "surrogatepass")):
        return
    expected = expected_tokens(text)
    if counted < expected * (1 if at_limit else _UNEXPLAINED):
        raise PromptCutError(
            f"{model} read only a part of the prompt: it counted {counted:,} tokens of about {expected:,}.",
            "Give its server a longer context (OLLAMA_CONTEXT_LENGTH, --max-model-len), or judge smaller groups.",
            counted,
            reply,
        )


def encode(piece: str) -> list[int]:
    """The tokens of a text, in `cl100k_base`."""
    return cl100k().encode(piece, disallowed_special=())


def count_tokens(text: str, stop_at: float = inf) -> int:
    """Token count of a text: at least the tokenizer's, and at most a few more per `PIECE`.

    Stops counting at `stop_at`.
    """
    counted = 0
    for start in range(0, len(text), PIECE):
        counted += len(encode(text[start : start + PIECE]))
        if counted >= stop_at:
            break
    return counted


def expected_tokens(text: str) -> int:
    """Estimated tokens of the text with a compact tokenizer."""
    text = _RUN.sub(lambda run: run[1] * 8, text)
    foreign = _NOT_ASCII.findall(text)
    cjk = sum(len(_CJK.findall(part)) for part in foreign)
    others = sum(map(len, foreign)) - cjk
    plain = _NOT_ASCII.sub("", text) if foreign else text
    tokens = count_tokens(plain)
    if others > _ACCENTED_SHARE * len(text):
        tokens = min(tokens, int(len(plain) / _CHARACTERS_PER_TOKEN))
    return tokens + int(_PER_CJK_CHARACTER * cjk + _PER_OTHER_CHARACTER * others)
