"""Samples one turn, and may end it before the engine does: at a stop string, or after its first tool call.

Where a turn ends depends on its tokens alone, so the same request gives the same turn however fast they come. A turn
that ends early keeps the tokens and log-probs that were sampled, as one that reaches its token limit does.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from gavel.trainer.engines.protocol import Engine, EngineError, Sampled, SamplingRequest

StopCheck = Callable[[Sequence[int]], bool]
"""Returns True if a turn ends with these tokens; called after each one."""
OnTurn = Callable[[Sampled], None]
"""Takes the turn so far, whenever there is more of it; its lists grow."""


async def sample_turn(
    engine: Engine, request: SamplingRequest, ends: Sequence[StopCheck] = (), heard: OnTurn | None = None
) -> Sampled:
    """The turn, which ends by any of `ends`. Raises what the engine raises; cancelling it ends the sampling."""
    if not ends and heard is None:
        return _finite(await asyncio.wrap_future(engine.submit(request)))
    loop = asyncio.get_running_loop()
    news: asyncio.Queue[Sampled | None] = asyncio.Queue()

    def on_tokens(piece: Sampled) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for the turn
            loop.call_soon_threadsafe(news.put_nowait, piece)

    future = asyncio.wrap_future(engine.submit(replace(request, on_tokens=on_tokens)))
    future.add_done_callback(lambda _: news.put_nowait(None))
    turn = Sampled([], [], "stop", 0)

    def ends_with(piece: Sampled) -> bool:
        """Appends a piece up to the token that ends the turn; whether there was one."""
        nonlocal turn
        turn = replace(turn, adapter_version=piece.adapter_version, redrawn=piece.redrawn)
        for at in range(len(piece.token_ids)):
            turn.token_ids.append(piece.token_ids[at])
            turn.logprobs.append(piece.logprobs[at])
            if any(end(turn.token_ids) for end in ends):
                return True
        return False

    try:
        while (piece := await news.get()) is not None:
            if ends_with(replace(piece, redrawn=turn.redrawn + piece.redrawn)):
                return _finite(turn)
            if heard is not None and news.empty():
                heard(turn)
        whole, told = _finite(future.result()), len(turn.token_ids)
        unheard = replace(whole, token_ids=whole.token_ids[told:], logprobs=whole.logprobs[told:])
        return turn if ends_with(unheard) else whole
    finally:
        future.cancel()  # no effect on one that is done


def _finite(sampled: Sampled) -> Sampled:
    if not all(map(math.isfinite, sampled.logprobs)):
        raise EngineError(
            "the engine gave a log-prob that is not a finite number, so its weights or its arithmetic overflow",
            "Go on from an earlier checkpoint with a smaller learning rate, or sample in a wider dtype.",
        )
    return sampled
