"""Log-probs of the trained tokens only.

The sequences are packed so that the transformer computes every shared prefix once, and only positions that predict a
trained token go through the vocabulary head. A prediction shared by several sequences is computed once; autograd sums
their gradients. A base whose layers cannot share prefixes computes one sequence after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    policy: Policy, batch: Sequence[TokenSequence], entropy_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs, and entropies of the distributions that the tokens were sampled from, in nats. `[T]` each

    A gradient flows through the entropies with `entropy_gradient` alone. Raises `AttentionError` or `HeadError` for a
    base model whose attention or vocabulary head is not supported.
    """
    return _scores(policy, _states(policy, batch), entropy_gradient)


def trained_values(policy: Policy, head: torch.nn.Linear, batch: Sequence[TokenSequence]) -> torch.Tensor:
    """Values by `head` of the hidden states that predict the sampled tokens, without the vocabulary head. `[T]`"""
    return _values(head, _states(policy, batch))


def valued_scores(
    policy: Policy, head: torch.nn.Linear, batch: Sequence[TokenSequence], entropy_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`trained_scores` and `trained_values` in one pass. `[T]` each"""
    states = _states(policy, batch)
    return *_scores(policy, states, entropy_gradient), _values(head, states)


@dataclass(frozen=True, slots=True)
class _States:
    hidden: torch.Tensor
    """`[S, H]`, one row per prediction."""
    targets: torch.Tensor
    temperatures: torch.Tensor
    scored: torch.Tensor
    """`[T]`, index of each trained token's prediction, as in `Packed`."""


def _scores(policy: Policy, states: _States, entropy_gradient: bool) -> tuple[torch.Tensor, torch.Tensor]:
    weight, bias = frozen_head(policy.head())
    form = logit_form(policy.decoder().config)
    logprobs, entropies = tiled_logprobs(
        states.hidden, weight, states.targets, states.temperatures, bias, form, entropy_gradient
    )
    return logprobs[states.scored], entropies[states.scored]


def _values(head: torch.nn.Linear, states: _States) -> torch.Tensor:
    return head(states.hidden.to(head.weight.dtype))[:, 0][states.scored]


def _states(policy: Policy, batch: Sequence[TokenSequence]) -> _States:
    if policy.spans is not None:
        return _pass(policy, pack(batch), policy.spans)
    parts = [_pass(policy, pack([tokens])) for tokens in batch]
    starts = np.cumsum([0, *(len(part.hidden) for part in parts[:-1])]).tolist()
    return _States(
        torch.cat([part.hidden for part in parts]),
        torch.cat([part.targets for part in parts]),
        torch.cat([part.temperatures for part in parts]),
        torch.cat([part.scored + start for part, start in zip(parts, starts, strict=True)]),
    )


def _pass(policy: Policy, packed: Packed, spans: Sequence[Span] | None = None) -> _States:
    """Without `spans` the row is one sequence, and the decoder attends in its own way."""
    decoder, device = policy.decoder(), policy.device
    ids, positions, places, targets, temperatures, scored = (
        torch.from_numpy(array).to(device)
        for array in (
            packed.token_ids,
            packed.positions,
            packed.predictors,
            packed.targets,
            packed.temperatures,
            packed.scored,
        )
    )
    row: dict[str, Any] = {}
    if spans is not None:
        kept = {} if policy.keeps_attention and torch.is_grad_enabled() else None
        row = {"attention_mask": NO_MASK.to(device), "packed_row": PackedRow(packed, spans, positions, kept)}
    hidden = decoder(
        input_ids=ids[None],
        position_ids=positions[None],
        use_cache=False,
        **row,
    ).last_hidden_state[0]
    return _States(hidden[places], targets, temperatures, scored)
