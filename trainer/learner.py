"""One optimisation step: a batch of sequences, their clipped-surrogate gradient, one AdamW update.

One update per batch of rollouts, so the ratio is taken against the sampler's own log-probs and no
second forward pass is needed.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from scenarios.errors import GavelError
from trainer.batch import Batch, TrainedSequence
from trainer.config import TrainConfig
from trainer.losses import clipped_share, clipped_surrogate, kl_k3
from trainer.packing import plan, unique_tokens
from trainer.policy import Policy
from trainer.scoring import trained_logprobs

_BETAS = (0.9, 0.95)


class LearnerError(GavelError):
    """A step cannot be made."""


class Learner:
    """Owns the optimiser over the policy's adapter."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=0.0, betas=_BETAS, weight_decay=0.0)
        self.updates = 0
        """Updates made so far; the schedule follows it."""

    def step(self, batch: Batch, config: TrainConfig) -> dict[str, float]:
        """Updates the adapter once and returns the step's metrics. The batch must not be empty.

        Raises `LearnerError`, with the adapter as it was, when the gradient is not finite or memory runs out.
        """
        self.policy.checkpoint_gradients(config.gradient_checkpointing)
        self.optimizer.zero_grad(set_to_none=True)
        totals: dict[str, float] = {}
        for micro_batch in _micro_batches(batch.sequences, config.micro_batch_tokens):
            try:
                found = self._accumulate(micro_batch, config)
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                self.optimizer.zero_grad(set_to_none=True)
                raise _does_not_fit(micro_batch, config) from error
            for name, value in found.items():
                totals[name] = totals.get(name, 0.0) + value
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), config.max_gradient_norm)
        if not torch.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise LearnerError(
                f"the gradient of this step is not finite ({norm.item()}), so nothing was changed",
                "Look at the step's log-probs and rewards; a smaller learning rate or float32 usually helps.",
            )
        rate = learning_rate(config, self.updates)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
            group["weight_decay"] = config.weight_decay
        self.optimizer.step()
        self.updates += 1
        tokens = batch.trained_tokens
        means = {name: totals[name] / tokens for name in ("logprob", "logprob_drift", "clipped_share")}
        return {"loss": totals["loss"], **means, "gradient_norm": float(norm), "learning_rate": rate}

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on exactly."""
        return {"optimizer": self.optimizer.state_dict(), "updates": self.updates}

    def restore(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]

    def _accumulate(self, micro_batch: Sequence[TrainedSequence], config: TrainConfig) -> dict[str, float]:
        tokens = [sequence.tokens for sequence in micro_batch]
        device = self.policy.device
        logprobs = trained_logprobs(self.policy, tokens)
        old = torch.tensor(
            [lp for t in tokens for lp, own in zip(t.logprobs, t.sampled, strict=True) if own], device=device
        )
        counts = torch.tensor([t.trained_tokens for t in tokens])
        advantages = torch.tensor([s.advantage for s in micro_batch]).repeat_interleave(counts).to(device)
        weights = torch.tensor([s.token_weight for s in micro_batch]).repeat_interleave(counts).to(device)
        losses = clipped_surrogate(logprobs, old, advantages, config.clip_low, config.clip_high)
        if config.beta:
            with torch.no_grad(), self.policy.model.disable_adapter():
                reference = trained_logprobs(self.policy, tokens)
            losses = losses + config.beta * kl_k3(logprobs, reference)
        loss = (losses * weights).sum()
        loss.backward()
        with torch.no_grad():
            clipped = clipped_share(logprobs, old, advantages, config.clip_low, config.clip_high)
            return {
                "loss": loss.item(),
                "logprob": logprobs.sum().item(),
                "logprob_drift": (logprobs - old).abs().sum().item(),
                "clipped_share": clipped.item() * len(logprobs),
            }


def learning_rate(config: TrainConfig, update: int) -> float:
    """The rate of an update, counted from 0: linear warm-up, then constant or linear decay to zero."""
    warm = min(1.0, (update + 1) / (config.warmup_steps + 1))
    if config.total_steps is None:
        return config.learning_rate * warm
    left = max(0.0, (config.total_steps - update) / max(1, config.total_steps - config.warmup_steps))
    return config.learning_rate * min(warm, left, 1.0)


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _does_not_fit(micro_batch: Sequence[TrainedSequence], config: TrainConfig) -> LearnerError:
    tokens = unique_tokens([sequence.tokens for sequence in micro_batch])
    ways = [] if config.gradient_checkpointing else ["gradient_checkpointing=True"]
    if len(micro_batch) > 1:
        ways.append(f"micro_batch_tokens={tokens // 2} (it is {config.micro_batch_tokens})")
    return LearnerError(
        f"memory ran out over {len(micro_batch)} sequences with {tokens} unique tokens, so nothing was changed",
        f"Set {' or '.join(ways)} in TrainConfig." if ways else "Shorten the trajectories, or take a larger device.",
    )


def _micro_batches(sequences: Sequence[TrainedSequence], most_tokens: int) -> Iterator[list[TrainedSequence]]:
    """The largest first, so that what does not fit fails before anything was spent on the rest."""
    tokens, groups = [s.tokens for s in sequences], [s.group for s in sequences]
    for indices in plan(tokens, groups, most_tokens):
        yield [sequences[index] for index in indices]
