"""Log-probs of the trained tokens only.

The sequences are packed so that the transformer computes every shared prefix once, and only positions that predict a
trained token go through the vocabulary head. A prediction shared by several sequences is computed once; autograd sums
their gradients. A base whose layers cannot share prefixes computes one sequence after the other.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch

from gavel.trainer.data.packing import Packed, pack
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.kernels.attention_kernels import Span
from gavel.trainer.kernels.lm_head import frozen_head, logit_form, tiled_logprobs
from gavel.trainer.kernels.packed_attention import NO_MASK, PackedRow
from gavel.trainer.policy.policy import Policy


def trained_logprobs(policy: Policy, batch: Sequence[TokenSequence]) -> torch.Tensor:
    """Log-probs of the sampled tokens of `batch`, in order, at their sampling temperatures. `[T]`"""
    return trained_scores(policy, batch)[0]


def trained_scores(
    policy: Policy, batch: Sequence[TokenSequence], entropy_gradient: bool = False, head: torch.nn.Linear | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Log-probs, entropies of the distributions that the tokens were sampled from, in nats, and `trained_values` where
    there is a value head. `[T]` each

    A gradient flows through the entropies with `entropy_gradient` alone. Raises `AttentionError` or `HeadError` for a
    base model whose attention or vocabulary head is not supported.
    """
    states = _states(policy, batch)
    weight, bias = frozen_head(policy.head())
    form = logit_form(policy.decoder().config)
    logprobs, entropies = tiled_logprobs(
        states.hidden, weight, states.targets, states.temperatures, bias, form, entropy_gradient
    )
    return logprobs[states.scored], entropies[states.scored], None if head is None else _values(head, states)


def trained_values(policy: Policy, head: torch.nn.Linear, batch: Sequence[TokenSequence]) -> torch.Tensor:
    """Values by `head` of the hidden states that predict the sampled tokens, without the vocabulary head. `[T]`"""
    return _values(head, _states(policy, batch))


class _States(NamedTuple):
    hidden: torch.Tensor
    """`[S, H]`, one row per prediction."""
    targets: torch.Tensor
    temperatures: torch.Tensor
    scored: torch.Tensor
    """`[T]`, index of each trained token's prediction, as in `Packed`."""


def _values(head: torch.nn.Linear, states: _States) -> torch.Tensor:
    return head(states.hidden.to(head.weight.dtype))[:, 0][states.scored]


def _states(policy: Policy, batch: Sequence[TokenSequence]) -> _States:
    if policy.spans is not None:
        return _pass(policy, pack(batch), policy.spans)
    parts = [_pass(policy, pack([tokens])) for tokens in batch]
    starts = accumulate((len(part.hidden) for part in parts), initial=0)
    shifted = [part._replace(scored=part.scored + start) for part, start in zip(parts, starts, strict=False)]
    return _States(*map(torch.cat, zip(*shifted, strict=True)))


def _pass(policy: Policy, packed: Packed, spans: Sequence[Span] | None = None) -> _States:
    """Without `spans` the row is one sequence, and the decoder attends in its own way."""

    def there(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(policy.device)

    positions = there(packed.positions)
    row: dict[str, Any] = {}
    if spans is not None:
        kept = {} if policy.keeps_attention and torch.is_grad_enabled() else None
        row = {"attention_mask": NO_MASK.to(policy.device), "packed_row": PackedRow(packed, spans, positions, kept)}
    output = policy.decoder()(
        input_ids=there(packed.token_ids)[None], position_ids=positions[None], use_cache=False, **row
    )
    hidden = output.last_hidden_state[0][there(packed.predictors)]
    return _States(hidden, there(packed.targets), there(packed.temperatures), there(packed.scored))
