"""Log-probs of the trained tokens only.

The transformer runs over whole sequences, the vocabulary head only over the positions that predict a
trained token.
"""

from collections.abc import Sequence

import torch

from trainer.policy import Policy
from trainer.tokens import TokenSequence


def trained_logprobs(policy: Policy, batch: Sequence[TokenSequence]) -> torch.Tensor:
    """Log-probs of the sampled tokens of `batch`, in order, at their sampling temperatures. `[T]`"""
    width = max(len(tokens.token_ids) for tokens in batch)
    ids = torch.zeros((len(batch), width), dtype=torch.long)
    sampled = torch.zeros((len(batch), width), dtype=torch.bool)
    temperatures = torch.ones((len(batch), width))
    for row, tokens in enumerate(batch):
        length = len(tokens.token_ids)
        ids[row, :length] = torch.tensor(tokens.token_ids)
        sampled[row, :length] = torch.tensor(tokens.sampled)
        temperatures[row, :length] = torch.tensor(tokens.temperatures)
    ids, sampled, temperatures = (tensor.to(policy.device) for tensor in (ids, sampled, temperatures))
    # Padding stands on the right, behind everything that attends, so no mask is needed.
    hidden = policy.decoder()(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    predicts = sampled[:, 1:]
    logits = policy.head()(hidden[predicts]).float() / temperatures[:, 1:][predicts][:, None]
    targets = ids[:, 1:][predicts]
    return torch.log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0]
