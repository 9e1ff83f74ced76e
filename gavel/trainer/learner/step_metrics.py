"""The metrics of a training step, accumulated over its passes, updates and processes."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from gavel.trainer.learner.losses import TokenLosses, TokenScores

_OUTLIER = 0.5
"""Nats: more than rounding explains in a dense model. Another choice of experts does, and a stale adapter."""


@dataclass(slots=True)
class StepMetrics:
    """Sums and counts of one process, from which the step's metrics are computed."""

    updates: int = 0
    gradient_norm: float = 0.0
    """Summed over the updates. Norm of the gradient of all processes, while `loss` is this process's part."""
    loss: float = 0.0
    value_loss: float | None = None
    """The value head's, if there is one."""
    tokens: int = 0
    """Trained tokens, counted once in every update."""
    forwarded: int = 0
    """Tokens computed by the transformer: shared prefixes once, passes without a gradient included."""
    token_sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    lowest_ratio: float = math.inf
    highest_ratio: float = 0.0

    @torch.no_grad()
    def add(self, scores: TokenScores, outcome: TokenLosses, entropies: torch.Tensor) -> None:
        sums = {
            "logprob": scores.logprobs,
            "entropy": entropies,
            "logprob_drift": (scores.logprobs - scores.sampler).abs(),
            "logprob_outliers": (scores.logprobs - scores.sampler).abs() > _OUTLIER,
            "clip_fraction_low": outcome.clipped_low,
            "clip_fraction_high": outcome.clipped_high,
        }
        if outcome.divergence is not None:
            sums["kl"] = outcome.divergence
        if scores.chosen is not None:
            sums["top_entropy_share"] = scores.chosen
        if outcome.correction is not None:
            sums["sampler_weight"] = outcome.correction.weights
            sums["sampler_weight_bounded"] = outcome.correction.bounded
        for name, values in sums.items():
            self.token_sums[name] += values.sum().item()
        self.tokens += len(scores.logprobs)
        self.lowest_ratio = min(self.lowest_ratio, outcome.ratio.min().item())
        self.highest_ratio = max(self.highest_ratio, outcome.ratio.max().item())

    @staticmethod
    def of_all(parts: Sequence["StepMetrics"]) -> "StepMetrics":
        """Combines the metrics of all processes; they make the same updates."""
        whole = StepMetrics(parts[0].updates, parts[0].gradient_norm)
        for step_metrics in parts:
            whole.loss += step_metrics.loss
            if step_metrics.value_loss is not None:
                whole.value_loss = (whole.value_loss or 0.0) + step_metrics.value_loss
            whole.tokens += step_metrics.tokens
            whole.forwarded += step_metrics.forwarded
            for name, total in step_metrics.token_sums.items():
                whole.token_sums[name] += total
            whole.lowest_ratio = min(whole.lowest_ratio, step_metrics.lowest_ratio)
            whole.highest_ratio = max(whole.highest_ratio, step_metrics.highest_ratio)
        return whole

    def metrics(self) -> dict[str, float]:
        means = {"loss": self.loss / self.updates, "gradient_norm": self.gradient_norm / self.updates}
        if self.value_loss is not None:
            means["value_loss"] = self.value_loss / self.updates
        means |= {name: total / self.tokens for name, total in self.token_sums.items()}
        extremes = {"ratio_min": self.lowest_ratio, "ratio_max": self.highest_ratio}
        return means | extremes | {"updates": self.updates, "tokens_forwarded": self.forwarded}
