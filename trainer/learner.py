"""One training step: a batch of sequences, the gradient of its loss, one AdamW update or several.

By default there is one update a batch, and the ratio is taken against the sampler's own log-probs, so
no second forward pass is needed. The log-probs that the ratio is taken against stay those of the
batch's start, however many updates are made from it; each update is averaged over its own mini-batch.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from scenarios.errors import GavelError
from trainer.batch import Batch, TrainedSequence, mini_batches
from trainer.config import Ppo, TrainConfig
from trainer.losses import Scores, TokenLosses, token_losses, token_weights
from trainer.packing import plan, unique_tokens
from trainer.policy import Policy
from trainer.scoring import trained_scores, trained_values, valued_scores
from trainer.tokens import TokenSequence
from trainer.values import Estimate, estimates, joined, value_head, value_losses, value_metrics

_BETAS = (0.9, 0.95)


class LearnerError(GavelError):
    """A step cannot be made."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """A sequence as one update sees it."""

    sequence: TrainedSequence
    token_weight: float
    old: torch.Tensor | None
    """What the ratio is taken against; None: the log-probs of the very pass that makes the update. `[T]`"""
    estimate: Estimate | None
    """Of the value head, if the loss has one."""


@dataclass(slots=True)
class _Tally:
    """What a step's metrics are made of."""

    updates: int = 0
    tokens: int = 0
    """Trained tokens, counted once in every update."""
    forwarded: int = 0
    """Tokens that went through the transformer, shared prefixes once, passes without a gradient included."""
    token_sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    update_sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    lowest_ratio: float = math.inf
    highest_ratio: float = 0.0

    @torch.no_grad()
    def add(self, scores: Scores, outcome: TokenLosses, entropies: torch.Tensor) -> None:
        sums = {
            "logprob": scores.logprobs,
            "entropy": entropies,
            "logprob_drift": (scores.logprobs - scores.sampler).abs(),
            "clip_fraction_low": outcome.clipped_low,
            "clip_fraction_high": outcome.clipped_high,
        }
        if outcome.divergence is not None:
            sums["kl"] = outcome.divergence
        for name, values in sums.items():
            self.token_sums[name] += values.sum().item()
        self.tokens += len(scores.logprobs)
        self.lowest_ratio = min(self.lowest_ratio, outcome.ratio.min().item())
        self.highest_ratio = max(self.highest_ratio, outcome.ratio.max().item())

    def metrics(self) -> dict[str, float]:
        means = {name: total / self.updates for name, total in self.update_sums.items()}
        means |= {name: total / self.tokens for name, total in self.token_sums.items()}
        extremes = {"ratio_min": self.lowest_ratio, "ratio_max": self.highest_ratio}
        return means | extremes | {"updates": self.updates, "tokens_forwarded": self.forwarded}


class Learner:
    """Owns the optimiser over the policy's adapter."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=0.0, betas=_BETAS, weight_decay=0.0)
        self.value_head: torch.nn.Linear | None = None
        """Made when a loss first asks for it; its weights are the optimiser's second group."""
        self.steps = 0
        """Batches learnt so far; the schedule follows it."""

    def step(self, batch: Batch, config: TrainConfig) -> dict[str, float]:
        """Updates the adapter and returns the step's metrics. The batch must not be empty.

        The metrics are means over the tokens, or the updates, of all mini-batches; log-probs and `kl` in nats.
        Raises `LearnerError`, with the adapter as the last good update left it, when a gradient is not finite or
        memory runs out.
        """
        self.policy.checkpoint_gradients(config.gradient_checkpointing)
        tally = _Tally()
        sequences = batch.sequences
        groups = [sequence.group for sequence in sequences]
        parts = [
            part
            for epoch in range(config.epochs)
            for part in mini_batches(groups, config.mini_batches, f"{self.steps} {epoch}")
        ]
        old = self._old(sequences, config, len(parts), tally)
        estimated = self._estimates(sequences, config, tally)
        rate = learning_rate(config, self.steps)
        for part in parts:
            lengths = [sequences[at].tokens.trained_tokens for at in part]
            weights = token_weights(config.loss, lengths, [groups[at] for at in part])
            samples = [
                _Sample(sequences[at], weight, old[at], estimated[at]) for at, weight in zip(part, weights, strict=True)
            ]
            self._update(samples, config, rate, tally)
        self.steps += 1
        return tally.metrics() | value_metrics(joined(estimated)) | {"learning_rate": rate}

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on exactly."""
        head = None if self.value_head is None else self.value_head.state_dict()
        return {"optimizer": self.optimizer.state_dict(), "value_head": head, "steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        if state["value_head"] is not None:
            self._critic().load_state_dict(state["value_head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]

    def _old(
        self, sequences: Sequence[TrainedSequence], config: TrainConfig, updates: int, tally: _Tally
    ) -> list[torch.Tensor | None]:
        """What each sequence's ratio is taken against, through all updates of a batch."""
        if config.sampler_correction is None:
            return [self._sampler([sequence.tokens]) for sequence in sequences]
        if updates == 1:  # the pass that makes the update is the learner at the batch's start
            return [None] * len(sequences)
        return [*self._before(sequences, config, lambda chosen: self._score(chosen, tally)[0])]

    def _critic(self) -> torch.nn.Linear:
        if self.value_head is None:
            self.value_head = value_head(self.policy.head().in_features, self.policy.device)
            self.optimizer.add_param_group({"params": list(self.value_head.parameters())})
        return self.value_head

    def _estimates(
        self, sequences: Sequence[TrainedSequence], config: TrainConfig, tally: _Tally
    ) -> Sequence[Estimate | None]:
        """What the value head says of each sequence before the batch is learnt."""
        if not isinstance(config.loss, Ppo):
            return [None] * len(sequences)
        head = self._critic()

        def values(chosen: Sequence[TokenSequence]) -> torch.Tensor:
            tally.forwarded += unique_tokens(chosen)
            return trained_values(self.policy, head, chosen)

        found = self._before(sequences, config, values)
        return estimates([sequence.rewards for sequence in sequences], found, config.loss)

    @torch.no_grad()
    def _before(
        self,
        sequences: Sequence[TrainedSequence],
        config: TrainConfig,
        score: Callable[[Sequence[TokenSequence]], torch.Tensor],
    ) -> list[torch.Tensor]:
        """What `score` gives for each sequence before the batch is learnt. `[T]` each"""
        found = [torch.empty(0)] * len(sequences)
        for places in _micro_batches(sequences, config):
            chosen = [sequences[at].tokens for at in places]
            for at, own in zip(places, score(chosen).split([t.trained_tokens for t in chosen]), strict=True):
                found[at] = own
        return found

    def _update(self, samples: Sequence[_Sample], config: TrainConfig, rate: float, tally: _Tally) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        sequences = [sample.sequence for sample in samples]
        for places in _micro_batches(sequences, config):
            try:
                self._accumulate([samples[at] for at in places], config, tally)
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                self.optimizer.zero_grad(set_to_none=True)
                raise _does_not_fit([sequences[at].tokens for at in places], config) from error
        # The value head's gradient has a scale of its own, which must not decide how far the policy moves.
        norms = [
            torch.nn.utils.clip_grad_norm_(group["params"], config.max_gradient_norm)
            for group in self.optimizer.param_groups
        ]
        norm = norms[0]
        if not all(map(torch.isfinite, norms)):
            self.optimizer.zero_grad(set_to_none=True)
            raise LearnerError(
                f"the gradient of this update is not finite ({norm.item()}), so the update was not made",
                "Look at the step's log-probs and rewards; a smaller learning rate or float32 usually helps.",
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
            group["weight_decay"] = config.weight_decay
        if isinstance(config.loss, Ppo):
            self.optimizer.param_groups[1]["lr"] = rate / config.learning_rate * config.loss.value_learning_rate
        self.optimizer.step()
        tally.updates += 1
        tally.update_sums["gradient_norm"] += norm.item()

    def _accumulate(self, samples: Sequence[_Sample], config: TrainConfig, tally: _Tally) -> None:
        tokens = [sample.sequence.tokens for sample in samples]
        lengths = [each.trained_tokens for each in tokens]
        counts = torch.tensor(lengths)
        device = self.policy.device
        estimate, values = joined([sample.estimate for sample in samples]), None
        if estimate is None:
            logprobs, entropies = self._score(tokens, tally)
            advantages = torch.tensor([s.sequence.advantage for s in samples]).repeat_interleave(counts).to(device)
        else:
            tally.forwarded += unique_tokens(tokens)
            logprobs, entropies, values = valued_scores(self.policy, self._critic(), tokens)
            advantages = estimate.advantages
        reference = None
        if config.beta:
            with torch.no_grad(), self.policy.model.disable_adapter():
                reference, _ = self._score(tokens, tally)
        known = [sample.old for sample in samples if sample.old is not None]
        scores = Scores(
            logprobs=logprobs,
            old=torch.cat(known) if known else logprobs.detach(),
            sampler=self._sampler(tokens),
            advantages=advantages,
            lengths=lengths,
            reference=reference,
        )
        weights = torch.tensor([s.token_weight for s in samples]).repeat_interleave(counts).to(device)
        outcome = token_losses(config, scores)
        loss = (outcome.losses * weights).sum()
        if estimate is not None and values is not None and isinstance(config.loss, Ppo):
            missed = value_losses(values, estimate.values, estimate.returns, config.loss.value_clip)
            value_loss = (missed * weights).sum()
            loss = loss + config.loss.value_coefficient * value_loss
            tally.update_sums["value_loss"] += value_loss.item()
        loss.backward()
        tally.update_sums["loss"] += loss.item()
        tally.add(scores, outcome, entropies)

    def _score(self, tokens: Sequence[TokenSequence], tally: _Tally) -> tuple[torch.Tensor, torch.Tensor]:
        tally.forwarded += unique_tokens(tokens)
        return trained_scores(self.policy, tokens)

    def _sampler(self, tokens: Sequence[TokenSequence]) -> torch.Tensor:
        """Log-probs of the trained tokens as they were sampled. `[T]`"""
        values = [lp for each in tokens for lp, own in zip(each.logprobs, each.sampled, strict=True) if own]
        return torch.tensor(values, device=self.policy.device)


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of a training step, counted from 0: linear warm-up, then constant or decaying to zero."""
    warm = min(1.0, (step + 1) / (config.warmup_steps + 1))
    if config.total_steps is None:
        return config.learning_rate * warm
    left = (config.total_steps - step) / max(1, config.total_steps - config.warmup_steps)
    left = min(1.0, max(0.0, left))
    if config.decay == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return config.learning_rate * min(warm, left)


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _does_not_fit(micro_batch: Sequence[TokenSequence], config: TrainConfig) -> LearnerError:
    tokens = unique_tokens(micro_batch)
    ways = [] if config.gradient_checkpointing else ["gradient_checkpointing=True"]
    if len(micro_batch) > 1:
        ways.append(f"micro_batch_tokens={tokens // 2} (it is {config.micro_batch_tokens})")
    return LearnerError(
        f"memory ran out over {len(micro_batch)} sequences with {tokens} unique tokens, so nothing was changed",
        f"Set {' or '.join(ways)} in TrainConfig." if ways else "Shorten the trajectories, or take a larger device.",
    )


def _micro_batches(sequences: Sequence[TrainedSequence], config: TrainConfig) -> list[list[int]]:
    """Places, the largest first, so that what does not fit fails before anything was spent on the rest."""
    return plan([s.tokens for s in sequences], [s.group for s in sequences], config.micro_batch_tokens)
