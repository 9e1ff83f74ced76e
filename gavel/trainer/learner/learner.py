"""One training step: a batch of sequences, the gradient of its loss, one or several AdamW updates.

By default there is one update per batch, with the ratio taken against the sampler's log-probs, so no second forward
pass is needed. The log-probs in the ratio's denominator are fixed at the start of the batch, however many updates
follow; each update is averaged over its own mini-batch. Several processes compute the gradients of whole groups each
and sum them, so the update equals that of one process.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gavel.llm.errors import GavelError
from gavel.trainer.config import Gspo, Ppo, TrainConfig
from gavel.trainer.data.packing import assign_to_ranks, micro_batches, unique_tokens
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.data.training_batch import Batch, TrainedSequence, mini_batches
from gavel.trainer.distributed import World
from gavel.trainer.learner.logprobs import trained_scores, trained_values, valued_scores
from gavel.trainer.learner.losses import TokenScores, token_losses, token_weights
from gavel.trainer.learner.step_metrics import StepMetrics
from gavel.trainer.learner.value_head import (
    ValueEstimates,
    concatenate,
    value_estimates,
    value_head,
    value_losses,
    value_metrics,
)
from gavel.trainer.policy.policy import Policy


class LearnerError(GavelError):
    """A training step failed; nothing was changed."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """A sequence with what one update needs of it."""

    sequence: TrainedSequence
    token_weight: float
    old: torch.Tensor | None
    """Denominator of the ratio; None: the log-probs of the update's own forward pass, detached. `[T]`"""
    estimate: ValueEstimates | None
    """From the value head, if the loss has one."""


class Learner:
    """Owns the optimizer over the policy's adapter."""

    def __init__(self, policy: Policy, world: World | None = None) -> None:
        """All processes of `world` must hold the same policy, and call the same methods with the same arguments."""
        self.policy = policy
        self._world = world or World()
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=0.0, weight_decay=0.0)
        self.value_head: torch.nn.Linear | None = None
        """Created when a loss first needs it; its weights are the optimizer's second parameter group."""
        self.steps = 0
        """Steps so far, those without anything to train included; the learning-rate schedule depends on it."""

    def step(self, batch: Batch, config: TrainConfig) -> dict[str, float]:
        """Updates the adapter and returns the step's metrics. The batch must not be empty.

        The metrics are means over the tokens, or the updates, of all mini-batches; log-probs and `kl` in nats.
        Raises `LearnerError`, with all state unchanged, when a gradient is not finite or memory runs out.
        """
        self.policy.checkpoint_gradients(config.gradient_checkpointing)
        step_metrics = StepMetrics()
        sequences = batch.sequences
        groups = [sequence.group for sequence in sequences]
        parts = [
            part
            for epoch in range(config.epochs)
            for part in mini_batches(groups, config.mini_batches, f"{self.steps} {epoch}")
        ]
        old = self._old(sequences, config, parts, step_metrics)
        estimated = self._estimates(sequences, config, step_metrics)
        rate = learning_rate(config, self.steps)
        with self._rolled_back_on_error(len(parts)):
            for part in parts:
                lengths = [sequences[at].tokens.trained_tokens for at in part]
                weights = token_weights(config.loss, lengths, [groups[at] for at in part])
                samples = [
                    _Sample(sequences[at], weight, old[at], estimated[at])
                    for at, weight in zip(part, weights, strict=True)
                ]
                self._update(samples, config, rate, step_metrics)
        self.steps += 1
        metrics = StepMetrics.of_all(self._world.gather(step_metrics)).metrics()
        return metrics | value_metrics(concatenate(estimated)) | {"learning_rate": rate}

    def state(self) -> dict[str, Any]:
        """What `restore` needs to continue exactly."""
        head = None if self.value_head is None else self.value_head.state_dict()
        return {"optimizer": self.optimizer.state_dict(), "value_head": head, "steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        if state["value_head"] is not None:
            self._ensure_value_head().load_state_dict(state["value_head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]

    @contextlib.contextmanager
    def _rolled_back_on_error(self, updates: int) -> Iterator[None]:
        """When one of several updates fails, the earlier ones are undone."""
        kept = [parameter.detach().clone() for parameter in self.policy.parameters()] if updates > 1 else []
        state = copy.deepcopy(self.state()) if updates > 1 else None
        try:
            yield
        except Exception:
            self.optimizer.zero_grad(set_to_none=True)
            if state is not None:
                with torch.no_grad():
                    for parameter, value in zip(self.policy.parameters(), kept, strict=True):
                        parameter.copy_(value)
                self.restore(state)
            raise

    def _old(
        self,
        sequences: Sequence[TrainedSequence],
        config: TrainConfig,
        parts: Sequence[Sequence[int]],
        step_metrics: StepMetrics,
    ) -> list[torch.Tensor | None]:
        """The denominator of each sequence's ratio, for all updates of the batch."""
        # Rounding alone moves a sequence's ratio to the sampler beyond the clip of Gspo.
        if config.sampler_correction is None and not isinstance(config.loss, Gspo):
            return [self._sampler([sequence.tokens]) for sequence in sequences]
        old: list[torch.Tensor | None] = [None] * len(sequences)
        if len(parts) == 1:  # the update's own forward pass is the learner at the start of the batch
            return old
        for part in parts[: len(parts) // config.epochs]:  # cut as the first epoch's updates, so that it rounds alike
            chosen = [sequences[at] for at in part]
            found = self._before(chosen, config, step_metrics, lambda *given: self._score(*given)[0])
            for at, logprobs in zip(part, found, strict=True):
                old[at] = logprobs
        return old

    def _ensure_value_head(self) -> torch.nn.Linear:
        if self.value_head is None:
            self.value_head = value_head(self.policy.head().in_features, self.policy.device)
            self.optimizer.add_param_group({"params": list(self.value_head.parameters())})
        return self.value_head

    def _estimates(
        self, sequences: Sequence[TrainedSequence], config: TrainConfig, step_metrics: StepMetrics
    ) -> Sequence[ValueEstimates | None]:
        """The value head's estimates of each sequence before the first update of the batch."""
        if not isinstance(config.loss, Ppo):
            return [None] * len(sequences)
        head = self._ensure_value_head()

        def values(tokens: Sequence[TokenSequence], step_metrics: StepMetrics) -> torch.Tensor:
            step_metrics.forwarded += unique_tokens(tokens)
            return trained_values(self.policy, head, tokens)

        found = self._before(sequences, config, step_metrics, values)
        return value_estimates([sequence.rewards for sequence in sequences], found, config.loss)

    @torch.no_grad()
    def _before(
        self,
        sequences: Sequence[TrainedSequence],
        config: TrainConfig,
        step_metrics: StepMetrics,
        score: Callable[[Sequence[TokenSequence], StepMetrics], torch.Tensor],
    ) -> Sequence[torch.Tensor]:
        """The result of `score` for each sequence before the first update of the batch. `[T]` each"""
        lengths = [sequence.tokens.trained_tokens for sequence in sequences]
        flat = torch.zeros(sum(lengths), device=self.policy.device)
        found = flat.split(lengths)
        passes = self._micro_batches(sequences, config)
        with self._world.together(communicating=self.policy.sharded):
            for indices in passes:
                chosen = [sequences[at].tokens for at in indices]
                if not chosen:
                    score([sequences[0].tokens], StepMetrics())
                    continue
                with _advising(chosen, config):
                    scored = score(chosen, step_metrics).split([each.trained_tokens for each in chosen])
                for at, own in zip(indices, scored, strict=True):
                    found[at].copy_(own)
        self._world.sum_(flat)  # each is zero except in one process
        return found

    def _update(self, samples: Sequence[_Sample], config: TrainConfig, rate: float, step_metrics: StepMetrics) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        passes = self._micro_batches([sample.sequence for sample in samples], config)
        with self._world.together(communicating=self.policy.sharded):
            for indices in passes:
                chosen = [samples[at] for at in indices] or [replace(samples[0], token_weight=0.0)]
                with _advising([sample.sequence.tokens for sample in chosen], config):
                    self._accumulate(chosen, config, step_metrics if indices else StepMetrics())
        # A value head that this loss does not use has no gradient, and AdamW does not change it.
        trained = self.optimizer.param_groups if isinstance(config.loss, Ppo) else self.optimizer.param_groups[:1]
        self._sum_gradients([parameter for group in trained for parameter in group["params"]])
        # Norms are clipped separately: the scale of the value head's gradient must not limit the policy's update.
        norms = [torch.nn.utils.clip_grad_norm_(group["params"], config.max_gradient_norm) for group in trained]
        infinite = next((norm for norm in norms if not norm.isfinite()), None)
        if infinite is not None:
            raise LearnerError(
                f"the gradient of an update is not finite ({infinite.item()}), so nothing was changed",
                "Look at the step's log-probs and rewards; a smaller learning rate or float32 usually helps.",
            )
        for group in trained:
            group["lr"] = rate
            group["weight_decay"] = config.weight_decay
            group["betas"] = config.adam_betas
        if isinstance(config.loss, Ppo):
            trained[1]["lr"] = rate / config.learning_rate * config.loss.value_learning_rate
        self.optimizer.step()
        step_metrics.updates += 1
        step_metrics.gradient_norm += norms[0].item()

    def _sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Over all processes, in one all-reduce; a process without sequences adds zeros."""
        if self._world.size == 1:
            return
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
        self._world.sum_(flat)
        for parameter, summed in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = summed.view_as(parameter)

    def _accumulate(self, samples: Sequence[_Sample], config: TrainConfig, step_metrics: StepMetrics) -> None:
        tokens = [sample.sequence.tokens for sample in samples]
        lengths = [each.trained_tokens for each in tokens]
        counts = torch.tensor(lengths)
        device = self.policy.device
        estimate, values = concatenate([sample.estimate for sample in samples]), None
        if estimate is None:
            logprobs, entropies = self._score(tokens, step_metrics)
            advantages = torch.tensor([s.sequence.advantage for s in samples]).repeat_interleave(counts).to(device)
        else:
            step_metrics.forwarded += unique_tokens(tokens)
            logprobs, entropies, values = valued_scores(self.policy, self._ensure_value_head(), tokens)
            advantages = estimate.advantages
        reference = None
        if config.beta:
            with torch.no_grad(), self.policy.model.disable_adapter():
                reference, _ = self._score(tokens, step_metrics)
        known = [sample.old for sample in samples if sample.old is not None]
        scores = TokenScores(
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
            squared_errors = value_losses(values, estimate.values, estimate.returns, config.loss.value_clip)
            value_loss = (squared_errors * weights).sum()
            loss = loss + config.loss.value_coefficient * value_loss
            step_metrics.value_loss = (step_metrics.value_loss or 0.0) + value_loss.item()
        loss.backward()
        step_metrics.loss += loss.item()
        step_metrics.add(scores, outcome, entropies)

    def _micro_batches(self, sequences: Sequence[TrainedSequence], config: TrainConfig) -> list[list[int]]:
        """This process's micro-batches as indices, the largest first, so that running out of memory shows at once.

        Over a sharded base every process makes the same number of passes; empty ones are appended.
        """
        tokens, groups = [s.tokens for s in sequences], [s.group for s in sequences]
        own = assign_to_ranks(tokens, groups, self._world.size)[self._world.rank]
        planned = micro_batches([tokens[at] for at in own], [groups[at] for at in own], config.micro_batch_tokens)
        found = [[own[at] for at in indices] for indices in planned]
        most = max(self._world.gather(len(found))) if self.policy.sharded else len(found)
        return found + [[] for _ in range(most - len(found))]

    def _score(self, tokens: Sequence[TokenSequence], step_metrics: StepMetrics) -> tuple[torch.Tensor, torch.Tensor]:
        step_metrics.forwarded += unique_tokens(tokens)
        return trained_scores(self.policy, tokens)

    def _sampler(self, tokens: Sequence[TokenSequence]) -> torch.Tensor:
        """The sampler's log-probs of the trained tokens. `[T]`"""
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


@contextlib.contextmanager
def _advising(micro_batch: Sequence[TokenSequence], config: TrainConfig) -> Iterator[None]:
    """Raises `LearnerError` with a remedy when memory runs out in `micro_batch`."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise _does_not_fit(micro_batch, config) from error
        raise


def _does_not_fit(micro_batch: Sequence[TokenSequence], config: TrainConfig) -> LearnerError:
    tokens = unique_tokens(micro_batch)
    ways = [] if config.gradient_checkpointing else ["gradient_checkpointing=True"]
    if len(micro_batch) > 1:
        ways.append(f"micro_batch_tokens={tokens // 2} (it is {config.micro_batch_tokens})")
    return LearnerError(
        f"memory ran out over {len(micro_batch)} sequences with {tokens} unique tokens, so nothing was changed",
        f"Set {' or '.join(ways)} in its config." if ways else "Shorten the trajectories, or take a larger device.",
    )
