"""One training step: a batch of sequences, the gradient of its loss, one or several AdamW updates.

By default there is one update per batch, with the ratio taken against the sampler's log-probs, so no second forward
pass is needed. The log-probs in the ratio's denominator are fixed at the start of the batch, however many updates
follow; each update is averaged over its own mini-batch. Several processes compute the gradients of whole groups each
and sum them, so the update equals that of one process.

The KL divergence from the reference as part of the reward, by k1 = the sampler's log-prob - the reference's.

    per token       A_t = A - beta * (k1_t + k1_{t+1} + … of its sequence)               (REINFORCE++, arXiv 2501.03262)
    per sequence    A = advantage of R - beta * (sum of k1 of the sequence) in its group (RLOO, arXiv 2402.14740)

A group's advantages are linear in its rewards for `mean` and `rloo`, so the penalty's own are subtracted from them; its
mean is over the group's trained sequences. With a value head the penalty is part of the tokens' rewards instead.
"""

import contextlib
import copy
import gc
import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch.nn import Dropout

from gavel.base.errors import GavelError
from gavel.trainer.config import Gspo, Ppo, TrainConfig
from gavel.trainer.data.packing import assign_to_ranks, micro_batches, unique_tokens
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.data.training_batch import Batch, TrainedSequence, mini_batches
from gavel.trainer.distributed import World
from gavel.trainer.learner.logprobs import trained_logprobs, trained_scores, trained_values
from gavel.trainer.learner.losses import (
    TokenLosses,
    TokenScores,
    ValueEstimates,
    concatenate,
    highest,
    token_losses,
    token_weights,
    value_estimates,
    value_head,
    value_losses,
    value_metrics,
    whiten,
)
from gavel.trainer.learner.step_bytes import MOST_TOKENS, with_defaults
from gavel.trainer.policy.policy import Policy


class LearnerError(GavelError):
    """A training step failed; nothing was changed."""


def penalize_advantages(
    sequences: Sequence[TrainedSequence], k1: Sequence[torch.Tensor], config: TrainConfig
) -> list[torch.Tensor]:
    """The advantages of the tokens of each sequence. `[T]` each, as of `k1`

    With `normalize_over_batch` those of tokens are brought to mean 0 and standard deviation 1 over all tokens; those of
    whole sequences are divided by their root mean square.
    """
    if config.kl_in_reward_per == "token":
        later = [own.flip(0).cumsum(0).flip(0) for own in k1]  # from each token to the last
        found = [s.advantage - config.kl_in_reward * own for s, own in zip(sequences, later, strict=True)]
        return [*whiten(torch.cat(found)).split([len(own) for own in k1])] if config.normalize_over_batch else found
    penalties = _center_by_group(sequences, [own.sum().item() for own in k1], leave_one_out=config.advantage == "rloo")
    values = [
        sequence.advantage - config.kl_in_reward * penalty
        for sequence, penalty in zip(sequences, penalties, strict=True)
    ]
    scale = math.sqrt(math.fsum(value**2 for value in values) / len(values)) if config.normalize_over_batch else 1.0
    return [torch.full_like(own, value / (scale or 1.0)) for own, value in zip(k1, values, strict=True)]


def penalized_rewards(
    sequences: Sequence[TrainedSequence], k1: Sequence[torch.Tensor], config: TrainConfig
) -> list[list[float]]:
    """The rewards of the tokens of each sequence, for a loss with a value head. `[T]` each"""
    found: list[list[float]] = []
    for sequence, own in zip(sequences, k1, strict=True):
        charged = own.tolist()
        if config.kl_in_reward_per == "sequence":
            charged = [0.0] * (len(charged) - 1) + [math.fsum(charged)]
        found.append([r - config.kl_in_reward * kl for r, kl in zip(sequence.rewards, charged, strict=True)])
    return found


def _center_by_group(
    sequences: Sequence[TrainedSequence], sums: Sequence[float], *, leave_one_out: bool
) -> list[float]:
    """Subtracts from each sum the mean of its group, or of the others in it."""
    groups: dict[int, list[float]] = defaultdict(list)
    for sequence, own in zip(sequences, sums, strict=True):
        groups[sequence.group].append(own)
    found = []
    for sequence, own in zip(sequences, sums, strict=True):
        members = groups[sequence.group]
        factor = len(members) / (len(members) - 1) if leave_one_out and len(members) > 1 else 1.0
        found.append((own - math.fsum(members) / len(members)) * factor)
    return found


@contextlib.contextmanager
def enable_dropout(model: Any, seed: str) -> Iterator[None]:
    """The adapter of `model` drops out, if it has a dropout, as drawn by `seed`; other draws are unchanged."""
    adapted = [module for module in model.modules() if isinstance(module, LoraLayer)]
    layers = [each for module in adapted for each in module.lora_dropout.values() if isinstance(each, Dropout)]
    if not layers:
        yield
        return
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7]))
        for layer in layers:
            layer.train()
        try:
            yield
        finally:
            for layer in layers:
                layer.eval()


def make_optimizer(parameters: Sequence[torch.nn.Parameter]) -> torch.optim.AdamW:
    """AdamW over `parameters`, to which a value head adds a second group; rates, betas and decay are set before every
    update."""
    return torch.optim.AdamW(list(parameters), lr=0.0, weight_decay=0.0)


def advised(error: RuntimeError, micro_batch: Sequence[TokenSequence], config: TrainConfig) -> Exception:
    """Returns a `LearnerError` with a remedy if memory ran out in `micro_batch`, else the error itself.

    Drops the frames of the error's traceback, which frees the memory of the pass.
    """
    if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
        return error
    tokens = unique_tokens(micro_batch)
    ways = {} if config.gradient_checkpointing else {"gradient_checkpointing=True": "--gradient-checkpointing"}
    if len(micro_batch) > 1:
        now = f"micro_batch_tokens={tokens // 2} (it is {config.micro_batch_tokens})"
        ways[now] = f"--micro-batch-tokens {tokens // 2}"
    advice = LearnerError(
        f"memory ran out over {len(micro_batch)} sequences with {tokens} unique tokens, so nothing was changed",
        f"Set {' or '.join(ways)} in its config; in the shell {' or '.join(ways.values())}. The run goes on with it."
        if ways
        else "Shorten the trajectories (--max-context), or take a larger device; `gavel plan` tells what fits.",
    )
    advice.__cause__ = error.with_traceback(None)
    gc.collect()
    return advice


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


LEAST_WHOLE = 2048
"""Micro-batches are not made smaller than this to avoid checkpointing."""
_OUTLIER = 0.5
"""Nats: more than rounding explains in a dense model. Another choice of experts does, and a stale adapter."""


@dataclass(slots=True)
class StepMetrics:
    """Sums and counts of one process, from which the step's metrics are computed."""

    updates: int = 0
    gradient_norm: float = 0.0
    """Summed over the updates. Norm of the gradient of all processes, while losses are this process's part."""
    losses: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """`loss`, and `value_loss` where there is a value head; summed over the updates."""
    tokens: int = 0
    """Trained tokens, counted once in every update."""
    forwarded: int = 0
    """Tokens computed by the transformer: shared prefixes once, passes without a gradient included."""
    token_sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    lowest_ratio: float = math.inf
    highest_ratio: float = 0.0

    @torch.no_grad()
    def add(self, scores: TokenScores, outcome: TokenLosses, entropies: torch.Tensor) -> None:
        drift, correction = (scores.logprobs - scores.sampler).abs(), outcome.correction
        sums = {
            "logprob": scores.logprobs,
            "entropy": entropies,
            "logprob_drift": drift,
            "logprob_outliers": drift > _OUTLIER,
            "clip_fraction_low": outcome.clipped_low,
            "clip_fraction_high": outcome.clipped_high,
            "kl": outcome.divergence,
            "top_entropy_share": scores.chosen,
            "sampler_weight": correction and correction.weights,
            "sampler_weight_bounded": correction and correction.bounded,
        }
        for name, values in sums.items():
            if values is not None:
                self.token_sums[name] += values.sum().item()
        self.tokens += len(scores.logprobs)
        self.lowest_ratio = min(self.lowest_ratio, outcome.ratio.min().item())
        self.highest_ratio = max(self.highest_ratio, outcome.ratio.max().item())

    @staticmethod
    def combine(parts: Sequence["StepMetrics"]) -> "StepMetrics":
        """Combines the metrics of all processes; they make the same updates."""
        whole = StepMetrics(parts[0].updates, parts[0].gradient_norm)
        for part in parts:
            for sums, own in ((whole.losses, part.losses), (whole.token_sums, part.token_sums)):
                for name, total in own.items():
                    sums[name] += total
            whole.tokens += part.tokens
            whole.forwarded += part.forwarded
            whole.lowest_ratio = min(whole.lowest_ratio, part.lowest_ratio)
            whole.highest_ratio = max(whole.highest_ratio, part.highest_ratio)
        return whole

    def metrics(self) -> dict[str, float]:
        means = {name: total / self.updates for name, total in self.losses.items()}
        means["gradient_norm"] = self.gradient_norm / self.updates
        means |= {name: total / self.tokens for name, total in self.token_sums.items()}
        extremes = {"ratio_min": self.lowest_ratio, "ratio_max": self.highest_ratio}
        return means | extremes | {"updates": self.updates, "tokens_forwarded": self.forwarded}


@dataclass(frozen=True, slots=True)
class _Sample:
    """A sequence with what its updates need of it, as it is before the first. Tensors are `[T]`."""

    sequence: TrainedSequence
    old: torch.Tensor | None
    """Denominator of the ratio; None: the log-probs of the update's own forward pass, detached."""
    reference: torch.Tensor | None
    """Log-probs under the reference, if they are known."""
    estimate: ValueEstimates | None
    """Estimates of the value head, if the loss has one."""
    advantages: torch.Tensor
    chosen: torch.Tensor | None
    """Mask of the tokens that the policy loss trains; None: all."""
    weight: float = 0.0
    """Of each of its tokens in an update."""


def _join(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """One tensor of those of all sequences; None where they have none."""
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None


_Score = Callable[[Sequence[TokenSequence]], torch.Tensor]
"""A number for each trained token. `[T]`"""


class Learner:
    """Owns the optimizer over the policy's adapter."""

    def __init__(self, policy: Policy, world: World | None = None) -> None:
        """All processes of `world` must hold the same policy, and call the same methods with the same arguments."""
        self.policy = policy
        self.world = world or World()
        self.optimizer = make_optimizer(policy.parameters())
        self.value_head: torch.nn.Linear | None = None
        """Created when a loss first needs it; its weights are the optimizer's second parameter group."""
        self.reference: list[torch.Tensor] | None = None
        """The adapter's weights that a divergence is from, in the order of its parameters; None: the base model."""
        self.steps = 0
        """Steps so far, those without anything to train included; the learning-rate schedule depends on it."""

    def step(self, batch: Batch, config: TrainConfig) -> dict[str, float]:
        """Updates the adapter and returns the step's metrics. The batch must not be empty.

        The metrics are means over the tokens, or the updates, of all mini-batches; log-probs and `kl` in nats.
        Raises `LearnerError`, with all state unchanged, when a gradient is not finite or memory runs out.
        """
        config = with_defaults(config, self.policy.device_kind)
        step_metrics = StepMetrics()
        groups = [sequence.group for sequence in batch.sequences]
        epochs = (mini_batches(groups, config.mini_batches, f"{self.steps} {epoch}") for epoch in range(config.epochs))
        parts = [part for epoch in epochs for part in epoch]
        samples, penalties = self._prepare(batch.sequences, config, parts, step_metrics)
        rate = learning_rate(config, self.steps)
        with self._roll_back_on_error(len(parts)):
            for part in parts:
                lengths = [samples[at].sequence.tokens.trained_tokens for at in part]
                weights = token_weights(config.loss, lengths, [groups[at] for at in part])
                weighted = [replace(samples[at], weight=weight) for at, weight in zip(part, weights, strict=True)]
                self._update(weighted, config, rate, step_metrics)
        self.steps += 1
        metrics = StepMetrics.combine(self.world.gather(step_metrics)).metrics()
        if penalties:
            metrics["kl_in_reward"] = torch.cat(penalties).mean().item()
        return metrics | value_metrics(concatenate([each.estimate for each in samples])) | {"learning_rate": rate}

    def state(self) -> dict[str, Any]:
        """The state that `restore` needs to continue exactly."""
        head = None if self.value_head is None else self.value_head.state_dict()
        return {"optimizer": self.optimizer.state_dict(), "value_head": head, "steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        if state["value_head"] is not None:
            self._ensure_value_head().load_state_dict(state["value_head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]

    def restart(self) -> None:
        """Begins again with a new optimizer, without a value head, at the schedule's beginning."""
        self.value_head = None
        self.optimizer = make_optimizer(self.policy.parameters())
        self.steps = 0

    @contextlib.contextmanager
    def _roll_back_on_error(self, updates: int) -> Iterator[None]:
        """Undoes the earlier of several updates if one fails."""
        before = (self.policy.adapter_weights(), copy.deepcopy(self.state())) if updates > 1 else None
        try:
            yield
        except Exception:
            self.optimizer.zero_grad(set_to_none=True)
            if before is not None:
                self.policy.set_adapter_weights(before[0])
                self.restore(before[1])
            raise

    def _prepare(
        self,
        sequences: Sequence[TrainedSequence],
        config: TrainConfig,
        parts: Sequence[Sequence[int]],
        step_metrics: StepMetrics,
    ) -> tuple[list[_Sample], list[torch.Tensor]]:
        """What the updates need of the policy before the first; and of each sequence k1, where the reward has it."""
        nothing: Sequence[None] = [None] * len(sequences)
        logprobs: _Score = partial(trained_logprobs, self.policy)
        old: dict[int, torch.Tensor] = {}
        if config.sampler_correction is None and not isinstance(config.loss, Gspo):  # which would clip rounding alone
            old = {at: self._sampler([sequence.tokens]) for at, sequence in enumerate(sequences)}
        # One update's own pass is that of the batch's start; the passes for several are cut, and so round, as theirs.
        elif len(parts) > 1 or self.policy.lora.dropout:
            for part in parts[: len(parts) // config.epochs]:
                chosen = [sequences[at] for at in part]
                old |= zip(part, self._score_before_updates(chosen, config, step_metrics, logprobs), strict=True)
        before = partial(self._score_before_updates, sequences, config, step_metrics)
        references: Sequence[torch.Tensor | None] = nothing
        if config.kl_in_reward or config.beta:
            with self.policy.with_weights(self.reference):
                references = before(logprobs)
        pairs = zip(sequences, references, strict=True) if config.kl_in_reward else ()
        k1 = [self._sampler([sequence.tokens]) - reference for sequence, reference in pairs if reference is not None]
        estimates: Sequence[ValueEstimates | None] = nothing
        if isinstance(config.loss, Ppo):
            head = self._ensure_value_head()
            values = before(partial(trained_values, self.policy, head))
            rewards = penalized_rewards(sequences, k1, config) if k1 else [sequence.rewards for sequence in sequences]
            estimates = found = value_estimates(rewards, values, config.loss)
            advantages = [each.advantages for each in found]
        elif k1:
            advantages = penalize_advantages(sequences, k1, config)
        else:
            of_tokens = [s.advantages or [s.advantage] * s.tokens.trained_tokens for s in sequences]
            advantages = [torch.tensor(values, device=self.policy.device) for values in of_tokens]
        masks: Sequence[torch.Tensor | None] = nothing
        if config.top_entropy < 1:
            entropies = before(lambda tokens: trained_scores(self.policy, tokens)[1])
            masks = highest(torch.cat([*entropies]), config.top_entropy).split([len(each) for each in entropies])
        olds = map(old.get, range(len(sequences)))
        whole = zip(sequences, olds, references, estimates, advantages, masks, strict=True)
        return [_Sample(*each) for each in whole], k1

    def _ensure_value_head(self) -> torch.nn.Linear:
        if self.value_head is None:
            self.value_head = value_head(self.policy.head().in_features, self.policy.device)
            self.optimizer.add_param_group({"params": list(self.value_head.parameters())})
        return self.value_head

    @torch.no_grad()
    def _score_before_updates(
        self,
        sequences: Sequence[TrainedSequence],
        config: TrainConfig,
        step_metrics: StepMetrics,
        score: _Score,
    ) -> Sequence[torch.Tensor]:
        """The result of `score` for each sequence before the first update of the batch. `[T]` each"""
        lengths = [sequence.tokens.trained_tokens for sequence in sequences]
        flat = torch.zeros(sum(lengths), device=self.policy.device)
        found = flat.split(lengths)
        passes = self._micro_batches(sequences, config)
        with self.world.together(communicating=self.policy.sharded):
            for indices in passes:
                chosen = [sequences[at].tokens for at in indices]
                if not chosen:
                    score([sequences[0].tokens])
                    continue
                step_metrics.forwarded += unique_tokens(chosen)
                try:
                    scored = score(chosen).split([each.trained_tokens for each in chosen])
                except RuntimeError as error:
                    raise advised(error, chosen, config)  # noqa: B904 - it has its cause
                for at, own in zip(indices, scored, strict=True):
                    found[at].copy_(own)
        self.world.sum_(flat)  # each is zero except in one process
        return found

    def _update(self, samples: Sequence[_Sample], config: TrainConfig, rate: float, step_metrics: StepMetrics) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        passes = self._micro_batches([sample.sequence for sample in samples], config)
        with self.world.together(communicating=self.policy.sharded):
            for indices in passes:
                chosen = [samples[at] for at in indices] or [replace(samples[0], weight=0.0)]
                tokens = [sample.sequence.tokens for sample in chosen]
                counted = step_metrics if indices else StepMetrics()
                seed = f"{self.steps} {counted.updates} {counted.tokens} {self.world.rank}"
                size = unique_tokens(tokens)
                self.policy.checkpoint_gradients(size > self._most_whole(config))
                # A sequence longer than what fits goes on only if nothing more than it needs is kept.
                self.policy.keeps_attention &= size <= (config.micro_batch_tokens or size)
                try:
                    with enable_dropout(self.policy.model, seed):
                        self._accumulate(chosen, config, counted)
                except RuntimeError as error:
                    raise advised(error, tokens, config)  # noqa: B904 - it has its cause
        # A value head that this loss does not use has no gradient, and AdamW does not change it.
        trained = self.optimizer.param_groups if isinstance(config.loss, Ppo) else self.optimizer.param_groups[:1]
        self._sum_gradients([parameter for group in trained for parameter in group["params"]])
        # Norms are clipped separately: the scale of the value head's gradient must not limit the policy's update.
        norms = [torch.nn.utils.clip_grad_norm_(group["params"], config.max_gradient_norm) for group in trained]
        if infinite := [norm.item() for norm in norms if not norm.isfinite()]:
            raise LearnerError(
                f"the gradient of an update is not finite ({infinite[0]}), so nothing was changed",
                "Look at the step's log-probs and rewards; a smaller learning rate or float32 usually helps.",
            )
        for group in trained:
            group |= {"lr": rate, "weight_decay": config.weight_decay, "betas": config.adam_betas}
        if isinstance(config.loss, Ppo):
            trained[1]["lr"] = rate / config.learning_rate * config.loss.value_learning_rate
        self.optimizer.step()
        step_metrics.updates += 1
        step_metrics.gradient_norm += norms[0].item()

    def _sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Sums over all processes in one all-reduce; a process without sequences adds zeros."""
        if self.world.size == 1:
            return
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
        self.world.sum_(flat)
        for parameter, summed in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = summed.view_as(parameter)

    def _accumulate(self, samples: Sequence[_Sample], config: TrainConfig, step_metrics: StepMetrics) -> None:
        tokens = [sample.sequence.tokens for sample in samples]
        lengths = [each.trained_tokens for each in tokens]
        estimate = concatenate([sample.estimate for sample in samples])
        head = None if estimate is None else self._ensure_value_head()
        step_metrics.forwarded += unique_tokens(tokens)
        logprobs, entropies, values = trained_scores(self.policy, tokens, config.entropy_bonus > 0, head)
        old = _join([sample.old for sample in samples])
        scores = TokenScores(
            logprobs=logprobs,
            old=logprobs.detach() if old is None else old,
            sampler=self._sampler(tokens),
            advantages=torch.cat([sample.advantages for sample in samples]),
            lengths=lengths,
            reference=_join([sample.reference for sample in samples]) if config.beta else None,
            entropies=entropies,
            chosen=_join([sample.chosen for sample in samples]),
        )
        weights = torch.tensor([s.weight for s in samples]).repeat_interleave(torch.tensor(lengths))
        weights = weights.to(self.policy.device)
        outcome = token_losses(config, scores)
        loss = (outcome.losses * weights).sum()
        if estimate is not None and values is not None and isinstance(config.loss, Ppo):
            squared_errors = value_losses(values, estimate.values, estimate.returns, config.loss.value_clip)
            value_loss = (squared_errors * weights).sum()
            loss = loss + config.loss.value_coefficient * value_loss
            step_metrics.losses["value_loss"] += value_loss.item()
        loss.backward()
        step_metrics.losses["loss"] += loss.item()
        step_metrics.add(scores, outcome, entropies.detach())

    def _micro_batches(self, sequences: Sequence[TrainedSequence], config: TrainConfig) -> list[list[int]]:
        """This process's micro-batches as indices, the largest first, so that running out of memory shows at once.

        Over a sharded base every process makes the same number of passes; empty ones are appended.
        """
        tokens, groups = [s.tokens for s in sequences], [s.group for s in sequences]
        own = assign_to_ranks(tokens, groups, self.world.size)[self.world.rank]
        most, whole = config.micro_batch_tokens or max(MOST_TOKENS.values()), self._most_whole(config)
        sizes = [most, int(whole)] if LEAST_WHOLE <= whole < most else [most]
        plans = (micro_batches([tokens[at] for at in own], [groups[at] for at in own], size) for size in sizes)

        def cost(plan: list[list[int]]) -> int:
            """In forward passes over a token: one, two of a backward pass, and one more with checkpointing."""
            unique = [unique_tokens([tokens[own[at]] for at in piece]) for piece in plan]
            return sum(size * (3 if size <= whole else 4) for size in unique)

        found = [[own[at] for at in indices] for indices in min(plans, key=cost)]
        passes = max(self.world.gather(len(found))) if self.policy.sharded else len(found)
        return found + [[] for _ in range(passes - len(found))]

    def _most_whole(self, config: TrainConfig) -> float:
        """The most unique tokens of a pass without checkpointing.

        Over a sharded base all processes have to compute alike, whatever their tokens are.
        """
        if config.gradient_checkpointing is not None:
            return 0 if config.gradient_checkpointing else math.inf
        return 0 if self.policy.sharded else config.whole_pass_tokens or 0

    def _sampler(self, tokens: Sequence[TokenSequence]) -> torch.Tensor:
        """The sampler's log-probs of the trained tokens. `[T]`"""
        values = [lp for each in tokens for lp, own in zip(each.logprobs, each.sampled, strict=True) if own]
        return torch.tensor(values, device=self.policy.device)
