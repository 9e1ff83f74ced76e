"""Memory that runs out in a training step: what to set, so that it does not."""

import contextlib
from collections.abc import Iterator, Sequence

import torch

from gavel.trainer.config import TrainConfig
from gavel.trainer.data.packing import unique_tokens
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.learner.errors import LearnerError


@contextlib.contextmanager
def advising(micro_batch: Sequence[TokenSequence], config: TrainConfig) -> Iterator[None]:
    """Raises `LearnerError` with a remedy when memory runs out in `micro_batch`."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise _does_not_fit(micro_batch, config) from error
        raise


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
