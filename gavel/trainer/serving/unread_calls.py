"""Tool calls that cannot be read, as text of the message that they stand in: as they were sampled, with their tags.

A judge sees what the policy said, and a conversation that holds the text goes on from the sampled tokens.
"""

from collections.abc import Callable, Sequence

from renderers import ParsedToolCall

Decode = Callable[[Sequence[int]], str]


def text_with(
    content: str, calls: Sequence[ParsedToolCall], token_ids: Sequence[int], decode: Decode, *, alone: bool = True
) -> str:
    """`content` and behind it `calls`, with the space between them that was sampled.

    `token_ids`: of the turn, without the token that ended it. `alone`: no call of the turn could be read, so that what
    follows the last one is text, too.
    """
    whole, text, at = decode(token_ids), "", 0
    for part in (content, *(_sampled(call, token_ids, decode) for call in calls)):
        if not part:
            continue
        start = whole.find(part, at)
        between = whole[at:start] if start >= 0 else "\n"
        text += (between if not between.strip() else "\n") + part if text else part
        at, alone = (start + len(part), alone) if start >= 0 else (at, False)
    return text + whole[at:] if alone else text


def _sampled(call: ParsedToolCall, token_ids: Sequence[int], decode: Decode) -> str:
    """With the tags around it, where the parser tells which tokens it read."""
    if call.token_span is None:
        return call.raw
    text = decode(token_ids[slice(*call.token_span)])
    return text if call.raw.strip() in text else call.raw
