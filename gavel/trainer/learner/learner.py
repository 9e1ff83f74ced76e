"""One training step: a batch of sequences, the gradient of its loss, one AdamW update or several.

By default there is one update a batch, and the ratio is taken against the sampler's own log-probs, so
no second forward pass is needed. The log-probs that the ratio is taken against stay those of the
batch's start, however many updates are made from it; each update is averaged over its own mini-batch.
Several processes learn whole groups each and sum their gradients, so the update is that of one process.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gavel.errors import GavelError
from gavel.trainer.config import Ppo, TrainConfig
from gavel.trainer.data.batch import Batch, TrainedSequence, mini_batches
from gavel.trainer.data.packing import plan, spread, unique_tokens
from gavel.trainer.data.tokens import TokenSequence
from gavel.trainer.distributed import World
from gavel.trainer.learner.logprobs import trained_scores, trained_values, valued_scores
from gavel.trainer.learner.losses import Scores, token_losses, token_weights
from gavel.trainer.learner.step_metrics import Tally
from gavel.trainer.learner.value_head import Estimate, estimates, joined, value_head, value_losses, value_metrics
from gavel.trainer.policy.policy import Policy

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


class Learner:
    """Owns the optimiser over the policy's adapter."""

    def __init__(self, policy: Policy, world: World | None = None) -> None:
        """Of several processes all hold the same policy, and call the same methods with the same arguments."""
        self.policy = policy
        self._world = world or World()
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=0.0, betas=_BETAS, weight_decay=0.0)
        self.value_head: torch.nn.Linear | None = None
        """Made when a loss first asks for it; its weights are the optimiser's second group."""
        self.steps = 0
        """Batches learnt so far; the schedule follows it."""

    def step(self, batch: Batch, config: TrainConfig) -> dict[str, float]:
        """Updates the adapter and returns the step's metrics. The batch must not be empty.

        The metrics are means over the tokens, or the updates, of all mini-batches; log-probs and `kl` in nats.
        Raises `LearnerError`, with everything as it was before, when a gradient is not finite or memory runs out.
        """
        self.policy.checkpoint_gradients(config.gradient_checkpointing)
        tally = Tally()
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
        with self._whole_or_nothing(len(parts)):
            for part in parts:
                lengths = [sequences[at].tokens.trained_tokens for at in part]
                weights = token_weights(config.loss, lengths, [groups[at] for at in part])
                samples = [
                    _Sample(sequences[at], weight, old[at], estimated[at])
                    for at, weight in zip(part, weights, strict=True)
                ]
                self._update(samples, config, rate, tally)
        self.steps += 1
        metrics = Tally.of_all(self._world.gather(tally)).metrics()
        return metrics | value_metrics(joined(estimated)) | {"learning_rate": rate}

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on exactly."""
        head = None if self.value_head is None else self.value_head.state_dict()
        return {"optimizer": self.optimizer.state_dict(), "value_head": head, "steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        if state["value_head"] is not None:
            self._critic().load_state_dict(state["value_head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]

    @contextlib.contextmanager
    def _whole_or_nothing(self, updates: int) -> Iterator[None]:
        """When one of several updates fails, the earlier ones are taken back."""
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
        self, sequences: Sequence[TrainedSequence], config: TrainConfig, updates: int, tally: Tally
    ) -> list[torch.Tensor | None]:
        """What each sequence's ratio is taken against, through all updates of a batch."""
        if config.sampler_correction is None:
            return [self._sampler([sequence.tokens]) for sequence in sequences]
        if updates == 1:  # the pass that makes the update is the learner at the batch's start
            return [None] * len(sequences)
        return [*self._before(sequences, config, tally, lambda *given: self._score(*given)[0])]

    def _critic(self) -> torch.nn.Linear:
        if self.value_head is None:
            self.value_head = value_head(self.policy.head().in_features, self.policy.device)
            self.optimizer.add_param_group({"params": list(self.value_head.parameters())})
        return self.value_head

    def _estimates(
        self, sequences: Sequence[TrainedSequence], config: TrainConfig, tally: Tally
    ) -> Sequence[Estimate | None]:
        """What the value head says of each sequence before the batch is learnt."""
        if not isinstance(config.loss, Ppo):
            return [None] * len(sequences)
        head = self._critic()

        def values(tokens: Sequence[TokenSequence], tally: Tally) -> torch.Tensor:
            tally.forwarded += unique_tokens(tokens)
            return trained_values(self.policy, head, tokens)

        found = self._before(sequences, config, tally, values)
        return estimates([sequence.rewards for sequence in sequences], found, config.loss)

    @torch.no_grad()
    def _before(
        self,
        sequences: Sequence[TrainedSequence],
        config: TrainConfig,
        tally: Tally,
        score: Callable[[Sequence[TokenSequence], Tally], torch.Tensor],
    ) -> Sequence[torch.Tensor]:
        """What `score` gives for each sequence before the batch is learnt. `[T]` each"""
        lengths = [sequence.tokens.trained_tokens for sequence in sequences]
        flat = torch.zeros(sum(lengths), device=self.policy.device)
        found = flat.split(lengths)
        passes = self._micro_batches(sequences, config)
        with self._world.together(talking=self.policy.sharded):
            for places in passes:
                chosen = [sequences[at].tokens for at in places]
                if not chosen:
                    score([sequences[0].tokens], Tally())
                    continue
                with _advising(chosen, config):
                    scored = score(chosen, tally).split([each.trained_tokens for each in chosen])
                for at, own in zip(places, scored, strict=True):
                    found[at].copy_(own)
        self._world.sum_(flat)  # each was zero but in one process
        return found

    def _update(self, samples: Sequence[_Sample], config: TrainConfig, rate: float, tally: Tally) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        passes = self._micro_batches([sample.sequence for sample in samples], config)
        with self._world.together(talking=self.policy.sharded):
            for places in passes:
                chosen = [samples[at] for at in places] or [replace(samples[0], token_weight=0.0)]
                with _advising([sample.sequence.tokens for sample in chosen], config):
                    self._accumulate(chosen, config, tally if places else Tally())
        # A value head that this loss does not ask for has no gradient, and AdamW leaves it as it is.
        trained = self.optimizer.param_groups if isinstance(config.loss, Ppo) else self.optimizer.param_groups[:1]
        self._sum_gradients([parameter for group in trained for parameter in group["params"]])
        # The value head's gradient has a scale of its own, which must not decide how far the policy moves.
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
        if isinstance(config.loss, Ppo):
            trained[1]["lr"] = rate / config.learning_rate * config.loss.value_learning_rate
        self.optimizer.step()
        tally.updates += 1
        tally.gradient_norm += norms[0].item()

    def _sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Over all processes, in one message; one that had nothing to learn adds nothing."""
        if self._world.size == 1:
            return
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
        self._world.sum_(flat)
        for parameter, summed in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = summed.view_as(parameter)

    def _accumulate(self, samples: Sequence[_Sample], config: TrainConfig, tally: Tally) -> None:
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
            tally.value_loss = (tally.value_loss or 0.0) + value_loss.item()
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

    def _score(self, tokens: Sequence[TokenSequence], tally: Tally) -> tuple[torch.Tensor, torch.Tensor]:
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


@contextlib.contextmanager
def _advising(micro_batch: Sequence[TokenSequence], config: TrainConfig) -> Iterator[None]:
    """Tells what to do when memory runs out over `micro_batch`."""
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
