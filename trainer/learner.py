"""One training step: a batch of sequences, the gradient of its loss, one AdamW update or several.

By default there is one update a batch, and the ratio is taken against the sampler's own log-probs, so
no second forward pass is needed. The log-probs that the ratio is taken against stay those of the
batch's start, however many updates are made from it; each update is averaged over its own mini-batch.
Several processes learn whole groups each and sum their gradients, so the update is that of one process.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from scenarios.errors import GavelError
from trainer.batch import Batch, TrainedSequence, mini_batches
from trainer.config import TrainConfig
from trainer.distributed import World
from trainer.losses import Scores, TokenLosses, token_losses, token_weights
from trainer.packing import plan, spread, unique_tokens
from trainer.policy import Policy
from trainer.scoring import trained_scores
from trainer.tokens import TokenSequence

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


@dataclass(slots=True)
class _Tally:
    """What a step's metrics are made of, as far as one process sees it."""

    updates: int = 0
    gradient_norm: float = 0.0
    """Summed over the updates, as `loss` is; of the whole gradient, while `loss` is this process's part."""
    loss: float = 0.0
    tokens: int = 0
    """Trained tokens, counted once in every update."""
    forwarded: int = 0
    """Tokens that went through the transformer, shared prefixes once, passes without a gradient included."""
    token_sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
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

    @staticmethod
    def of_all(tallies: Sequence["_Tally"]) -> "_Tally":
        """Of all processes, which make the same updates."""
        whole = _Tally(tallies[0].updates, tallies[0].gradient_norm)
        for tally in tallies:
            whole.loss += tally.loss
            whole.tokens += tally.tokens
            whole.forwarded += tally.forwarded
            for name, total in tally.token_sums.items():
                whole.token_sums[name] += total
            whole.lowest_ratio = min(whole.lowest_ratio, tally.lowest_ratio)
            whole.highest_ratio = max(whole.highest_ratio, tally.highest_ratio)
        return whole

    def metrics(self) -> dict[str, float]:
        means = {"loss": self.loss / self.updates, "gradient_norm": self.gradient_norm / self.updates}
        means |= {name: total / self.tokens for name, total in self.token_sums.items()}
        extremes = {"ratio_min": self.lowest_ratio, "ratio_max": self.highest_ratio}
        return means | extremes | {"updates": self.updates, "tokens_forwarded": self.forwarded}


class Learner:
    """Owns the optimiser over the policy's adapter."""

    def __init__(self, policy: Policy, world: World | None = None) -> None:
        """Of several processes all hold the same policy, and call the same methods with the same arguments."""
        self.policy = policy
        self._world = world or World()
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=0.0, betas=_BETAS, weight_decay=0.0)
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
        rate = learning_rate(config, self.steps)
        for part in parts:
            lengths = [sequences[at].tokens.trained_tokens for at in part]
            weights = token_weights(config.loss, lengths, [groups[at] for at in part])
            samples = [_Sample(sequences[at], weight, old[at]) for at, weight in zip(part, weights, strict=True)]
            self._update(samples, config, rate, tally)
        self.steps += 1
        return _Tally.of_all(self._world.gather(tally)).metrics() | {"learning_rate": rate}

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on exactly."""
        return {"optimizer": self.optimizer.state_dict(), "steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
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
        lengths = [sequence.tokens.trained_tokens for sequence in sequences]
        flat = torch.zeros(sum(lengths), device=self.policy.device)
        found = list(flat.split(lengths))
        passes = self._micro_batches(sequences, config)
        with torch.no_grad(), self._world.together(talking=self.policy.sharded):
            for places in passes:
                chosen = [sequences[at].tokens for at in places]
                if not chosen:
                    self._score([sequences[0].tokens], _Tally())
                    continue
                logprobs = self._score(chosen, tally)[0].split([t.trained_tokens for t in chosen])
                for at, values in zip(places, logprobs, strict=True):
                    found[at].copy_(values)
        self._world.sum_(flat)  # each was zero but in one process
        return [*found]

    def _update(self, samples: Sequence[_Sample], config: TrainConfig, rate: float, tally: _Tally) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        passes = self._micro_batches([sample.sequence for sample in samples], config)
        with self._world.together(talking=self.policy.sharded):
            for places in passes:
                chosen = [samples[at] for at in places] or [replace(samples[0], token_weight=0.0)]
                try:
                    self._accumulate(chosen, config, tally if places else _Tally())
                except RuntimeError as error:
                    if not _out_of_memory(error):
                        raise
                    self.optimizer.zero_grad(set_to_none=True)
                    raise _does_not_fit([sample.sequence.tokens for sample in chosen], config) from error
        self._sum_gradients()
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), config.max_gradient_norm)
        if not torch.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise LearnerError(
                f"the gradient of this update is not finite ({norm.item()}), so the update was not made",
                "Look at the step's log-probs and rewards; a smaller learning rate or float32 usually helps.",
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
            group["weight_decay"] = config.weight_decay
        self.optimizer.step()
        tally.updates += 1
        tally.gradient_norm += norm.item()

    def _sum_gradients(self) -> None:
        """Over all processes, in one message; one that had nothing to learn adds nothing."""
        if self._world.size == 1:
            return
        parameters = self.policy.parameters()
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
        self._world.sum_(flat)
        for parameter, summed in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = summed.view_as(parameter)

    def _accumulate(self, samples: Sequence[_Sample], config: TrainConfig, tally: _Tally) -> None:
        tokens = [sample.sequence.tokens for sample in samples]
        lengths = [each.trained_tokens for each in tokens]
        device = self.policy.device
        logprobs, entropies = self._score(tokens, tally)
        reference = None
        if config.beta:
            with torch.no_grad(), self.policy.model.disable_adapter():
                reference, _ = self._score(tokens, tally)
        known = [sample.old for sample in samples if sample.old is not None]
        counts = torch.tensor(lengths)
        scores = Scores(
            logprobs=logprobs,
            old=torch.cat(known) if known else logprobs.detach(),
            sampler=self._sampler(tokens),
            advantages=torch.tensor([s.sequence.advantage for s in samples]).repeat_interleave(counts).to(device),
            lengths=lengths,
            reference=reference,
        )
        weights = torch.tensor([s.token_weight for s in samples]).repeat_interleave(counts).to(device)
        outcome = token_losses(config, scores)
        loss = (outcome.losses * weights).sum()
        loss.backward()
        tally.loss += loss.item()
        tally.add(scores, outcome, entropies)

    def _micro_batches(self, sequences: Sequence[TrainedSequence], config: TrainConfig) -> list[list[int]]:
        """This process's places, the largest first: what does not fit fails before anything was spent on the rest.

        Over a sharded base every process makes as many passes as the one with the most: empty ones fill up.
        """
        tokens, groups = [s.tokens for s in sequences], [s.group for s in sequences]
        own = spread(tokens, groups, self._world.size)[self._world.rank]
        planned = plan([tokens[at] for at in own], [groups[at] for at in own], config.micro_batch_tokens)
        found = [[own[at] for at in places] for places in planned]
        most = max(self._world.gather(len(found))) if self.policy.sharded else len(found)
        return found + [[] for _ in range(most - len(found))]

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
        f"Set {' or '.join(ways)} in its config." if ways else "Shorten the trajectories, or take a larger device.",
    )
