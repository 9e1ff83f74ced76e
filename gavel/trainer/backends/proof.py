"""Proves that sampler and learner have the same policy, by the log-probs that both give to the same tokens.

Three proofs stand here. `prove_engine` runs before training: two conversations of two turns, sampled at once, then
scored by the learner. They begin alike and differ in length, so a cache that one fills and the other reads, or a state
that is lost between turns, shows in the log-probs.

`PublishCheck` runs at every publication. Before a step both sides score a probe, some sequences of its batch; after the
publication both score it again, and the evidence says which adapter the sampler serves:

    learner  earlier -1.20 -0.70 -3.10    new -1.00 -0.80 -2.90
    sampler          -1.19 -0.71 -3.12        the earlier adapter: twice as near to it as to the new one

Sampler and learner round in different places, so no gap is an error by its size alone. "earlier" needs a gap well
beyond the rounding seen before, and the sampler nearer to the earlier adapter in the mean and in quantiles, in both
halves of the tokens that tell the two apart; or no bit of its log-probs changed at all. An earlier or another adapter
raises `PublishError`. A change below rounding is "unknown": the probe is kept, and the next publication is compared
with the adapter proven last, until the changes add up. Meanwhile `Movement` finds a sampler that is stuck: one that
follows moves about as far at each publication as at the others.

`SamplerProof` proves each server of a pool by itself, since a mean over servers would hide one that serves another
adapter. A server that comes back is proven in full before it takes a request.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from gavel.base.errors import GavelError
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.data.training_batch import TrainedSequence
from gavel.trainer.engines.engine_pool import EnginePool
from gavel.trainer.engines.protocol import DEADLINE, Engine, EngineError, SamplingRequest
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.policy.loading import ANOTHER_ENGINE
from gavel.trainer.policy.policy import Policy

FEWEST = 32
"""Tokens below which nothing is told."""
_CLEARLY, _BEYOND = 2.0, 4.0
"""Min ratios for a verdict: of the distances to the two adapters, and of the larger one and the rounding."""
_ANOTHER = 4.0
"""A gap so many times the rounding and the learner's own change belongs to another adapter."""
_QUANTILES = (0.5, 0.9)
_TELLING, _FEWEST_TELLING = 1 / 8, 16
"""Share and number of the tokens that are looked at: those whose log-prob the adapters change most."""
_CERTAIN, _CHANGED = 1e-3, 0.9
"""Nats up to which a token may keep every bit of its log-prob; the share of the others that changes with an adapter."""
_KNOWN, _STILL = 3, 0.5
"""Publications from which the sampler's movement is known, and the share of the least at which it may stand still."""
_MOST, _ENOUGH = 3.0, 4.0
"""Bits of evidence that one publication gives at most, and that are needed: so one publication alone is never enough.

Beside 36 layers in bfloat16 a healthy sampler's movement varies by 18 % (the standard deviation of its logarithm): one
bit below the least of twenty is some six of these below the mean, and at least two such publications are needed.
"""
_SEQUENCES, _MAX_TOKENS = 2, 256
"""Sequences in a probe, and max tokens of each."""
FLOOR = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.005}
"""Nats per token below which a gap is always rounding, while that is not known yet; a tenth of it afterwards."""
_REMEMBERED, _FIRST = 20, 5
"""Gaps from which the rounding is known, and publications on a probe whose gaps are rounding, whatever they change."""
_PROMPT_TOKENS, _SAMPLED_TOKENS, _OBSERVED_TOKENS = 24, 16, 4
"""Tokens per conversation and turn, if the context has room for twice as many."""
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
"""Nats per token by which the computation of a base model may differ, by the dtype of its weights."""

LearnerLogprobs = Callable[..., torch.Tensor]
"""The learner's log-probs of the trained tokens of one or more sequences, computed in one pass. `[T]`"""
Verdict = Literal["new", "earlier", "another", "unknown"]


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probs of the probe's tokens under one adapter. `[T]` each."""

    learner: torch.Tensor
    sampler: torch.Tensor


def verdict(new: Scores, earlier: Scores, last: Scores, rounding: float, floor: float) -> Verdict:
    """The adapter that the sampler serves, judged by its scores after a publication (`new`).

    `earlier`: before, under an adapter that it certainly served; `last`: at the publication before this one, the same
    unless that was not told. `rounding`: the largest mean gap of sampler and learner that was seen under one adapter,
    `floor`: one that is always taken for rounding; nats per token.
    """
    if len(new.learner) < FEWEST:
        return "unknown"
    if torch.equal(new.sampler, last.sampler):  # no bit of it changed
        uncertain = new.learner < -_CERTAIN
        changed = new.learner[uncertain] != last.learner[uncertain]
        if len(changed) >= FEWEST and changed.float().mean().item() >= _CHANGED:
            return "earlier"
    near, far = (new.sampler - new.learner).abs(), (new.sampler - earlier.learner).abs()
    change = (new.learner - earlier.learner).abs()
    beyond = near.mean() > _ANOTHER * max(rounding, change.mean().item(), floor)
    if beyond and near.mean() > far.mean() / _CLEARLY:
        return "another"
    telling = change.topk(max(_FEWEST_TELLING, int(_TELLING * len(change)))).indices.sort().values
    halves = telling[: len(telling) // 2], telling[len(telling) // 2 :]
    if near[telling].mean() > _BEYOND * max(rounding, floor) and all(_smaller(far[at], near[at]) for at in halves):
        return "earlier"
    if far[telling].mean() > _BEYOND * rounding and all(_smaller(near[at], far[at]) for at in halves):
        return "new"
    return "unknown"


def _smaller(gaps: torch.Tensor, others: torch.Tensor) -> bool:
    """True if `gaps` are smaller than `others` in the mean and at every quantile."""
    at = torch.tensor(_QUANTILES, device=gaps.device)
    ranked = bool((torch.quantile(others, at) >= _CLEARLY * torch.quantile(gaps, at)).all())
    return ranked and bool(others.mean() > _CLEARLY * gaps.mean())


class Movement:
    """Change of the sampler's log-probs at a publication, per nat of change of the learner's."""

    def __init__(self) -> None:
        self._shares: deque[float] = deque(maxlen=_REMEMBERED)
        self._bits = 0.0

    def stands_still(self, new: Scores, last: Scores, again: torch.Tensor) -> bool:
        """True if the sampler certainly stood still over the last publications while the learner moved.

        `last`: scores of the same tokens before the publication; `again`: the sampler's scores after it, requested a
        second time. Returns False where two passes differ by about as much as a sampler that follows would move.
        """
        learner = (new.learner - last.learner).abs().mean().item()
        moved = (new.sampler - last.sampler).abs().mean().item()
        noise = (again - new.sampler).abs().mean().item()
        if len(new.learner) < FEWEST or not learner:
            return False
        own = math.sqrt(max(moved**2 - noise**2, 0.0))
        expected = min(self._shares) * learner if len(self._shares) >= _KNOWN else 0.0
        if moved > _CLEARLY * noise:
            self._bits = 0.0
            self._shares.append(own / learner)
        elif expected and max(own, noise) <= _STILL * expected:
            self._bits += min(_MOST, math.log2(expected / max(own, noise, expected / 2**_MOST)))
        return self._bits >= _ENOUGH


class PublishError(GavelError):
    """The sampler does not follow the adapter that was published."""


@dataclass(slots=True)
class _Probe:
    token_ids: list[list[int]]
    earlier: Scores
    """Scores under the adapter that was proven last."""
    last: Scores
    """Scores under the adapter that was published last."""
    adapter: torch.Tensor
    """The adapter's fingerprint."""
    publications: int = 0


class PublishCheck:
    """Compares the sampler before and after every publication of a run."""

    def __init__(self, engine: Engine, policy: Policy, learner_logprobs: LearnerLogprobs) -> None:
        self._engine = engine
        self._policy = policy
        self._logprobs = learner_logprobs
        self._probe: _Probe | None = None
        self._gaps: deque[float] = deque(maxlen=_REMEMBERED)
        """Mean gaps of sampler and learner under one adapter, in nats per token."""
        self._movement = Movement()

    def before(self, sequences: Sequence[TrainedSequence]) -> None:
        """To be called before the learner changes the adapter that is live. `sequences` are what it will train."""
        if self._probe is None and sequences:
            token_ids = _chosen(sequences, min(_MAX_TOKENS, self._engine.max_context - 1))  # scoring may need one more
            try:
                scores = self._scores(token_ids)
            except EngineError:  # the publication tells of it, once the step is saved
                return
            self._probe = _Probe(token_ids, scores, scores, self._fingerprint())
            self._gaps.append((scores.sampler - scores.learner).abs().mean().item())

    def after(self) -> dict[str, float]:
        """To be called after the publication; the metrics of the check.

        `publish_gap`: the largest gap between sampler and learner in nats; `publish_gap_mean`; `publish_change`: the
        mean change of the learner's log-probs since the adapter that was proven last; `publish_proven`: 1 when the new
        adapter is certainly live, 0 when the change is too small to tell. Raises `PublishError`.
        """
        probe = self._probe
        if probe is None:
            return {}
        new, adapter = self._scores(probe.token_ids), self._fingerprint()
        gaps = (new.sampler - new.learner).abs()
        if not bool(gaps.isfinite().all()):
            raise not_live("log-probs of sampler or learner are not finite")
        served: Verdict = "unknown"
        if not torch.equal(adapter, probe.adapter):  # otherwise there is nothing to tell apart
            floor = FLOOR[self._policy.dtype] * (1 if len(self._gaps) <= _FIRST else 0.1)
            served = verdict(new, probe.earlier, probe.last, max(self._gaps), floor)
            again = self._served_logprobs(probe.token_ids, new.learner.device)
            if self._movement.stands_still(new, probe.last, again) and served == "unknown":
                served = "earlier"
        if served == "earlier":
            raise not_live(f"the sampler still serves an earlier adapter ({gaps.mean():.3g} nats a token from the new)")
        if served == "another":
            raise not_live(f"the sampler serves another adapter ({gaps.mean():.3g} nats a token from the learner)")
        change = (new.learner - probe.earlier.learner).abs().mean().item()
        probe.last, probe.adapter = new, adapter
        probe.publications += 1
        if served == "new" or probe.publications <= _FIRST:
            self._gaps.append(gaps.mean().item())
        if served == "new":
            self._probe = None
        return {
            "publish_gap": gaps.max().item(),
            "publish_gap_mean": gaps.mean().item(),
            "publish_change": change,
            "publish_proven": float(served == "new"),
        }

    def _scores(self, token_ids: Sequence[list[int]]) -> Scores:
        learned = self._logprobs(*map(all_trained, token_ids)).float()
        return Scores(learned, self._served_logprobs(token_ids, learned.device))

    def _served_logprobs(self, token_ids: Sequence[list[int]], device: torch.device) -> torch.Tensor:
        return torch.tensor([logprob for ids in token_ids for logprob in self._engine.score(ids)], device=device)

    @torch.no_grad()
    def _fingerprint(self) -> torch.Tensor:
        """Equal for adapters that are equal as they are served."""
        return torch.stack([p.to(self._policy.dtype).double().sum().cpu() for p in self._policy.parameters()])


def not_live(found: str) -> PublishError:
    """The error of a sampler that does not follow."""
    return PublishError(
        f"after publishing, {found}",
        "Register the model again to go on from the last checkpoint. If it fails again, the adapter did not become "
        "live, or its numbers are too large to compute with: lower the learning rate.",
    )


def _chosen(sequences: Sequence[TrainedSequence], longest: int) -> list[list[int]]:
    """The sequences with most tokens to learn, of different groups where there are several."""

    def learnt(each: TrainedSequence) -> tuple[bool, int]:
        return each.advantage != 0, sum(each.tokens.sampled[:longest])

    first, *others = sorted(sequences, key=learnt, reverse=True)
    others.sort(key=lambda each: each.group == first.group)
    return [each.tokens.token_ids[:longest] for each in [first, *others][:_SEQUENCES]]


def all_trained(ids: list[int]) -> TokenSequence:
    """Marks every token but the first as trained."""
    return TokenSequence(ids, [False] + [True] * (len(ids) - 1), [0.0] * len(ids), [1.0] * len(ids))


@dataclass(slots=True)
class _Conversation:
    token_ids: list[int]
    sampled: list[tuple[int, list[float]]]
    """Each turn's start, and its log-probs at the engine."""


def prove_engine(
    engine: Engine,
    learner_logprobs: LearnerLogprobs,
    vocabulary: int,
    dtype: torch.dtype,
    base_logprobs: LearnerLogprobs | None = None,
) -> None:
    """Samples two turns of two conversations, and compares with plain passes of the engine and of the learner.

    `base_logprobs`: those without the adapter, for one that is not new; a sampler without it is then found, too.
    Raises `PublishError`: the engine's cache computes something else, its adapter is not the learner's, or the learner
    computes other log-probs when sequences share a prefix; and `EngineError`.
    """
    tolerance = _TOLERANCE[dtype]
    conversations = _sample_conversations(engine, vocabulary)
    served = [torch.tensor(engine.score(each.token_ids)) for each in conversations]
    for turn, where in enumerate(("", " in the second turn of a conversation")):
        gaps: list[float] = []
        for each, plain in zip(conversations, served, strict=True):  # of the tokens from the second on
            begin, logprobs = each.sampled[turn]
            gaps.append(_typical(torch.tensor(logprobs) - plain[begin - 1 :][: len(logprobs)]))
        if not all(gap <= tolerance for gap in gaps):
            raise PublishError(
                f"the engine's cache does not fit this base model: log-probs off by {max(gaps):.3g} nats{where}",
                ANOTHER_ENGINE,
            )
    whole = [all_trained(each.token_ids) for each in conversations]
    alone = [learner_logprobs(each).float() for each in whole]
    served = [each.to(alone[0].device) for each in served]
    gap = max(_typical(ours - theirs) for ours, theirs in zip(alone, served, strict=True))
    if not gap <= tolerance:
        raise not_live(f"sampler and learner differ by {gap:.3g} nats a token")
    if base_logprobs is not None:
        base = torch.cat([base_logprobs(each).float() for each in whole])
        before = Scores(base, base)
        if verdict(Scores(torch.cat(alone), torch.cat(served)), before, before, 0.0, FLOOR[dtype]) == "earlier":
            raise not_live("the sampler serves the base model without the adapter")
    gap = _typical(learner_logprobs(*whole).float() - torch.cat(served))
    if not gap <= tolerance:
        raise PublishError(
            f"the learner's log-probs of sequences that share a prefix are off by {gap:.3g} nats",
            "Choose another base model: layers of this one see more than their own sequence.",
        )


def _sample_conversations(engine: Engine, vocabulary: int) -> list[_Conversation]:
    room = engine.max_context
    prompt = list(range(min(_PROMPT_TOKENS, vocabulary, max(2, room // 4))))
    half = len(prompt) // 2
    found = [_Conversation(ids, []) for ids in (prompt, [*prompt[:half], *reversed(prompt[half:])][: -half // 2])]
    for turn in range(2):
        asked = [
            SamplingRequest(
                each.token_ids, frozenset(), max(1, min(_SAMPLED_TOKENS, room // 8)), temperature=1.0, seed=2 * turn + n
            )
            for n, each in enumerate(found)
        ]
        futures = [engine.submit(request) for request in asked]
        try:
            replies = [future.result(timeout=DEADLINE) for future in futures]
        except TimeoutError as error:
            raise EngineError(f"the engine did not sample a few tokens within {DEADLINE:.0f} s") from error
        for each, sampled in zip(found, replies, strict=True):
            each.sampled.append((len(each.token_ids), sampled.logprobs))
            each.token_ids = [*each.token_ids, *sampled.token_ids]
            if not turn:
                each.token_ids += prompt[1 : 1 + min(_OBSERVED_TOKENS, room // 8)]
    return found


def _typical(gaps: torch.Tensor) -> float:
    """The root mean square: a single token that is routed or rounded otherwise weighs little."""
    return gaps.square().mean().sqrt().item()


class SamplerProof:
    """Compares each sampler with the learner when it joins, and before and after every publication."""

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        learner_logprobs: LearnerLogprobs,
        base_logprobs: LearnerLogprobs,
        *,
        adapted: bool,
    ) -> None:
        """`base_logprobs`: without the adapter; `adapted`: whether the adapter of now is not a new one, which gives
        the same. Raises `PublishError`, and `EngineError`."""
        self._engine = engine
        self._policy = policy
        self._logprobs = learner_logprobs
        self._base = base_logprobs
        self._checks: dict[Engine, PublishCheck] = {
            sampler: self._prove(sampler, adapted)
            for sampler in (engine.serving if isinstance(engine, EnginePool) else [engine])
        }

    def before(self, sequences: Sequence[TrainedSequence]) -> None:
        """To be called before the learner changes the adapter that is live. `sequences` are what it will train."""
        for check in self._checks.values():
            check.before(sequences)

    def after(self) -> dict[str, float]:
        """To be called after the publication of what was learned; the metrics of `PublishCheck.after`, of the worst
        sampler. Raises `PublishError`, and `EngineError` when no sampler is left."""
        if not isinstance(self._engine, EnginePool):
            return self._checks[self._engine].after()
        worst: dict[str, float] = {}
        for sampler in self._engine.serving:
            try:
                found = self._checks[sampler].after()
            except EngineError as error:
                if not self._engine.leave_out(sampler, error):
                    raise
            except PublishError as error:
                raise PublishError(f"at {sampler.address}: {error.message}", error.remedy) from error
            else:
                for name, value in found.items():
                    pick = min if name == "publish_proven" else max
                    worst[name] = pick(value, worst.get(name, value))
        return worst

    def admit_returned(self) -> dict[str, float]:
        """Takes back the samplers that came back and have the live adapter, once that is proven; the pool's counts of
        the step. Raises `EngineError` when no sampler is left."""
        if not isinstance(self._engine, EnginePool):
            return {}
        for sampler in self._engine.returned:
            try:
                check = self._prove(sampler, adapted=True)
            except (PublishError, EngineError) as error:
                self._engine.leave_out(sampler, error)
            else:
                self._checks[sampler] = check
                self._engine.admit(sampler)
        self._checks = {sampler: self._checks[sampler] for sampler in self._engine.serving}
        return self._engine.take_counts()

    def _prove(self, sampler: Engine, adapted: bool) -> PublishCheck:
        policy = self._policy
        try:
            prove_engine(sampler, self._logprobs, policy.vocabulary, policy.dtype, self._base if adapted else None)
        except EngineError as error:
            if not isinstance(sampler, TransformersEngine):
                raise  # a server may be well again in a moment
            raise PublishError(
                f"the embedded engine cannot sample this base model: {error.message}", ANOTHER_ENGINE
            ) from error
        return PublishCheck(sampler, policy, self._logprobs)
