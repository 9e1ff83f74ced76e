"""Log-probs of the trained tokens only.

The sequences are packed so that the transformer computes every shared prefix once, and only the
positions that predict a trained token go through the vocabulary head. A prediction that several
sequences share is made once and handed to each of them; autograd adds up what they learn from it.
"""

from collections.abc import Sequence

import torch

from trainer.attention import attend_packed
from trainer.head import logit_scale, tiled_logprobs
from trainer.packing import pack
from trainer.policy import Policy
from trainer.tokens import TokenSequence


def trained_logprobs(policy: Policy, batch: Sequence[TokenSequence]) -> torch.Tensor:
    """Log-probs of the sampled tokens of `batch`, in order, at their sampling temperatures. `[T]`"""
    return trained_scores(policy, batch)[0]


def trained_scores(policy: Policy, batch: Sequence[TokenSequence]) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probs, and the entropies of the distributions that the tokens were chosen from, in nats. `[T]` each

    No gradient flows through the entropies. Raises `AttentionError` or `HeadError` for a base model
    whose attention or vocabulary head is not of the common kind.
    """
    packed = pack(batch)
    decoder, head, device = policy.decoder(), policy.head(), policy.device
    attend_packed(decoder)
    scale = logit_scale(head, decoder.config)
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
    hidden = decoder(
        input_ids=ids[None],
        position_ids=positions[None],
        attention_mask=_NO_MASK.to(device),
        use_cache=False,
        segments=packed.segments,
    ).last_hidden_state[0]
    logprobs, entropies = tiled_logprobs(hidden[places], head.weight, targets, temperatures / scale)
    return logprobs[scored], entropies[scored]


_NO_MASK = torch.empty((1, 1, 0, 0))
"""A mask of four dimensions is handed to the attention as it is, so that none is made."""
