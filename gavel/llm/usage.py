"""The tokens of a call as its server reports them, in OpenAI's terms.

Prompt tokens include those that were read from the server's cache, or written to it; completion tokens include those of
reasoning. A server that reports reasoning apart, as xAI does, is recognized by its total.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 0
    """0 = not reported."""
    completion_tokens: int = 0
    """0 = not reported."""
    cached_prompt_tokens: int = 0
    """Of the prompt tokens, those that the server had in its cache."""
    written_prompt_tokens: int = 0
    """Of the prompt tokens, those that the server wrote to its cache, where it charges for that."""
    reasoning_apart: int = 0
    """Of the completion tokens, those of reasoning that the server did not count as such."""


def read_usage(usage: Any) -> Usage:
    """The usage of a LiteLLM response; all 0 when the server reports none."""
    if usage is None:
        return Usage()
    prompt, completion = _tokens(usage, "prompt_tokens"), _tokens(usage, "completion_tokens")
    read_from_cache = getattr(usage, "prompt_tokens_details", None)
    reasoning = _tokens(getattr(usage, "completion_tokens_details", None), "reasoning_tokens")
    apart = reasoning if _tokens(usage, "total_tokens") == prompt + completion + reasoning else 0
    cached = min(_tokens(read_from_cache, "cached_tokens"), prompt)
    written = min(_tokens(usage, "cache_creation_input_tokens"), prompt - cached)
    return Usage(prompt, completion + apart, cached, written, apart)


def _tokens(of: Any, name: str) -> int:
    return token_count(getattr(of, name, None))


def token_count(reported: object) -> int:
    """A number of tokens; 0 where the server reports none, or a number that no request has."""
    return reported if isinstance(reported, int) and 0 < reported <= _MOST else 0


_MOST = 1_000_000_000
"""Of one request. A larger number is a server's fault; believed, it would spend every budget at once."""
