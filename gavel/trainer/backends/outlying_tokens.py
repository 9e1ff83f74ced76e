"""Counts the tokens on which sampler and learner differ by more than rounding, and says so when they are many.

In a mixture of experts the two choose experts each by its own arithmetic, so a few tokens of a step may be computed by
other experts than they were sampled by; a policy that went on since gives others. Such a token's ratio is off.
"""

import logging

from gavel.trainer.config import TrainConfig

_LOG = logging.getLogger(__name__)
_MANY = 0.01
"""Share of a step's tokens."""


class OutlyingTokens:
    """The counts of a run's steps. Warns once at the first step with many, and again whenever the share has doubled."""

    def __init__(self, *, experts: bool) -> None:
        """`experts`: whether the model is a mixture of experts."""
        self._experts = experts
        self._told = _MANY / 2

    def of_step(self, share: float, tokens: int, config: TrainConfig) -> dict[str, float]:
        """The metric `tokens_outlying`. `share`: that of `tokens`, trained in the step, that differ by > 0.5 nats."""
        count = round(share * tokens)
        corrected = config.sampler_correction is not None
        if not corrected and share >= 2 * self._told:
            self._told = share
            cause = "other experts were chosen, or the policy went on" if self._experts else "the policy went on since"
            _LOG.warning(
                "Sampler and learner differ by more than 0.5 nats on %d of %d tokens (%.1f %%): %s. Their ratios are "
                "off; sampler_correction with mode 'token_mask' leaves them out (docs/algorithms.md).",
                count,
                tokens,
                100 * share,
                cause,
            )
        return {"tokens_outlying": count}
