"""Where a request ends a turn: at the first of its stop strings, or after one tool call."""

import re
from collections.abc import Callable, Container, Sequence

from renderers import ParsedResponse

from gavel.llm.types import Message
from gavel.trainer.serving.chat_objects import is_call
from gavel.trainer.serving.turn_sampling import Ends

_SHOWN = ("content", "reasoning_content")
_MAY_CLOSE_A_CALL = re.compile(r"[>}\]|]")


def any_of(ends: Sequence[Ends]) -> Ends | None:
    match ends:
        case []:
            return None
        case [one]:
            return one
        case _:
            return lambda token_ids: any(end(token_ids) for end in ends)


def at_strings(stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> Ends:
    """Ends with the token that completes one of `stop`."""
    widest = max(len(text.encode()) for text in stop) + 1
    """Tokens that may hold one: each has a byte at least, and one more shows whether a character is complete."""

    def ends(token_ids: Sequence[int]) -> bool:
        text = decode(token_ids[-widest:])
        return any(each in text for each in stop)

    return ends


def after_one_call(parse: Callable[[Sequence[int]], ParsedResponse], decode: Callable[[Sequence[int]], str]) -> Ends:
    """Ends with the token that closes a tool call which can be read."""

    def ends(token_ids: Sequence[int]) -> bool:
        if not _MAY_CLOSE_A_CALL.search(decode(token_ids[-1:])):
            return False
        return any(map(is_call, parse(token_ids).tool_calls))

    return ends


def without_end(token_ids: list[int], stop_ids: Container[int]) -> list[int]:
    """A turn without the token that ended it."""
    return token_ids[:-1] if token_ids and token_ids[-1] in stop_ids else token_ids


def without_stop(reply: Message, stop: Sequence[str]) -> Message:
    """The reply up to a stop string, which it does not show."""
    cut = dict(reply)
    for name in _SHOWN:
        text = reply.get(name)
        if isinstance(text, str):
            ends = [at for each in stop if (at := text.find(each)) >= 0]
            cut[name] = text[: min(ends)] if ends else text
    return cut
