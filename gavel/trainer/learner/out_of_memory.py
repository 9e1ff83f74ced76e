"""Memory that runs out in a training step: what to set, so that it does not."""

import gc
from collections.abc import Sequence

import torch

from gavel.trainer.config import TrainConfig
from gavel.trainer.data.packing import unique_tokens
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.learner.errors import LearnerError


def advised(error: RuntimeError, micro_batch: Sequence[TokenSequence], config: TrainConfig) -> Exception:
    """What to raise: `LearnerError` with a remedy when memory ran out in `micro_batch`, else the error itself.

    The memory that the pass held is free again: its frames, in the error's traceback, are dropped.
    """
    if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
        return error
    advice = _does_not_fit(micro_batch, config)
    advice.__cause__ = error.with_traceback(None)
    gc.collect()
    return advice


def _does_not_fit(micro_batch: Sequence[TokenSequence], config: TrainConfig) -> LearnerError:
    tokens = unique_tokens(micro_batch)
    fewer = tokens // 2
    ways = {} if config.gradient_checkpointing else {"gradient_checkpointing=True": "--gradient-checkpointing"}
    if len(micro_batch) > 1:
        now = f"micro_batch_tokens={fewer} (it is {config.micro_batch_tokens})"
        ways[now] = f"--micro-batch-tokens {fewer}"
    return LearnerError(
        f"memory ran out over {len(micro_batch)} sequences with {tokens} unique tokens, so nothing was changed",
        f"Set {' or '.join(ways)} in its config; in the shell {' or '.join(ways.values())}. The run goes on with it."
        if ways
        else "Shorten the trajectories (--max-context), or take a larger device; `gavel plan` tells what fits.",
    )
