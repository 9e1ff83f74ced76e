"""The turns of a token sequence, for trainers that keep no messages.

    turns(tokenizer, [5, 6, 7, 8], [1, 1, 0, 1])     assistant: 5 6 · user: 7 · assistant: 8

What the policy sampled is the assistant's; what lies between, with what the chat template wrote there, is the user's.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from gavel.llm.types import Message


def turns(tokenizer: Any, ids: Iterable[int], sampled: Iterable[int]) -> list[Message]:
    """`sampled` is 1 for each token of the policy, else 0. Special tokens are left out, and so are empty turns."""
    found: list[Message] = []
    for by_policy, run in groupby(zip(ids, sampled, strict=True), key=lambda pair: bool(pair[1])):
        text = tokenizer.decode([token for token, _ in run], skip_special_tokens=True)
        if text.strip():
            found.append({"role": "assistant" if by_policy else "user", "content": text})
    return found
