"""Notices a server that cut the prompt: it answered, but counted far fewer tokens than the prompt has.

Ollama, for one, drops what does not fit its context (4,096 tokens, unless `num_ctx` says otherwise) and answers 200. A
verdict on half of a prompt is no verdict.

Tokenizers differ, so the count is compared with what a compact one makes of the text: `cl100k_base` for ASCII, less for
other scripts, of which newer vocabularies hold whole words. Near half of that, no tokenizer explains the count. A
server of the user's own that counts exactly a usual context length is believed less: one token too few suffices.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any

from gavel.llm.errors import ContextError
from gavel.llm.message_parts import text_of
from gavel.llm.providers import load_litellm
from gavel.llm.types import Message, Reply

_SMALLEST_CONTEXT = 512
"""No model has a smaller context; a smaller count is no count of the prompt, but of what was not cached, say."""
_UNEXPLAINED = 0.55
_CONTEXTS = frozenset(2**power for power in range(11, 18))
_PIECE = 4096
_MOST_BYTES_PER_TOKEN = 5
"""With more tokens than that nothing can be missing; below, the text is counted, which takes longer."""
_RUN = re.compile(r"(.)\1{7,}", re.DOTALL)
"""Long runs of one character, of which vocabularies hold very different lengths."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_ACCENTED_SHARE, _CHARACTERS_PER_TOKEN = 0.005, 4.5
"""From this share of other characters on, ASCII letters may be a language that `cl100k_base` knows little of: Turkish
or Vietnamese, of which newer vocabularies read so many characters with a token."""
_PER_CJK_CHARACTER, _PER_OTHER_CHARACTER = 0.6, 0.24
"""Tokens of a compact tokenizer for Chinese, Japanese and Korean text, and for other scripts than ASCII."""


class PromptCutError(ContextError):
    """The server answered a part of the prompt only."""

    def __init__(self, message: str, remedy: str, limit: int, reply: Reply) -> None:
        super().__init__(message, remedy, limit)
        self.reply = reply
        """It is paid for, and worth nothing."""


def check_not_cut(
    model: str, reply: Reply, messages: Sequence[Message], *, own_server: bool, limits: Collection[int] = ()
) -> None:
    """Raises `PromptCutError` when the server counted far fewer tokens than the messages have.

    `own_server`: whether it is one of the user's own, whose context may be any length. `limits`: context lengths that
    are known for it, besides the usual ones.
    """
    counted = reply.prompt_tokens
    if counted < _SMALLEST_CONTEXT:
        return
    if reply.cached_prompt_tokens:  # some servers leave them out of the count
        counted += reply.cached_prompt_tokens
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


def expected_tokens(text: str) -> int:
    """The tokens of the text by a compact tokenizer."""
    text = _RUN.sub(lambda run: run[1] * 8, text)
    foreign = _NOT_ASCII.findall(text)
    cjk = sum(len(_CJK.findall(part)) for part in foreign)
    others = sum(map(len, foreign)) - cjk
    plain = _NOT_ASCII.sub("", text) if foreign else text
    encoding: Any = load_litellm().encoding
    pieces = (plain[start : start + _PIECE] for start in range(0, len(plain), _PIECE))
    tokens = sum(len(encoding.encode(piece, disallowed_special=())) for piece in pieces)
    if others > _ACCENTED_SHARE * len(text):
        tokens = min(tokens, int(len(plain) / _CHARACTERS_PER_TOKEN))
    return tokens + int(_PER_CJK_CHARACTER * cjk + _PER_OTHER_CHARACTER * others)
