"""Sampling from another distribution than the policy's: penalties, biases, and the tail cut off.

Log-probs are then those of the distribution that was sampled from, which no learner can compare with the policy's.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # requests are made without it, as by a model that is only prompted
    import torch


@dataclass(frozen=True, slots=True)
class Shaping:
    """As OpenAI's API and vLLM mean them; each default changes nothing."""

    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])

    @property
    def looks_back(self) -> bool:
        """Whether a token's distribution depends on which of those before it belong to the reply."""
        return bool(self.presence_penalty or self.frequency_penalty)

    def asked(self) -> dict[str, object]:
        """Those that change something, by name."""
        plain = asdict(Shaping())
        return {name: value for name, value in asdict(self).items() if value != plain[name]}

    def logits(self, logits: "torch.Tensor", prompt_ids: Sequence[int], token_ids: Sequence[int]) -> "torch.Tensor":
        """With biases and penalties; before the temperature. `[vocabulary]`"""
        import torch

        found = logits.clone()
        if self.repetition_penalty != 1:
            seen = torch.tensor(sorted({*prompt_ids, *token_ids}), device=logits.device)
            values = found[seen]
            found[seen] = torch.where(values > 0, values / self.repetition_penalty, values * self.repetition_penalty)
        for token, count in Counter(token_ids).items():
            found[token] -= self.presence_penalty + count * self.frequency_penalty
        for token, bias in self.logit_bias.items():
            if token < len(found):
                found[token] += bias
        return found

    def logprobs(self, logprobs: "torch.Tensor") -> "torch.Tensor":
        """Without the tail; after the temperature. `[vocabulary]`"""
        import torch

        kept = torch.ones_like(logprobs, dtype=torch.bool)
        if 0 < self.top_k < len(logprobs):
            kept &= logprobs >= logprobs.topk(self.top_k).values[-1]
        if self.min_p > 0:
            kept &= logprobs.exp() >= self.min_p * logprobs.max().exp()
        if self.top_p < 1:
            ranked, order = logprobs.masked_fill(~kept, -torch.inf).softmax(-1).sort(descending=True, stable=True)
            beyond = ranked.cumsum(-1) - ranked >= self.top_p
            beyond[0] = False
            kept[order[beyond]] = False
        return torch.log_softmax(logprobs.masked_fill(~kept, -torch.inf), -1)
