"""Proves that the sampler's adapter is live, by the log-probs that sampler and learner give to the same tokens.

Before a step both score a probe, some sequences of its batch; after the publication both score it again, and
`publish_evidence` tells which adapter the sampler serves. An earlier or another one raises `PublishError`, so no
rollout is sampled by another policy than the one that is being trained. A change below rounding cannot be told: then
the probe is kept, and the next publication is compared with the adapter that was proven last, until the changes add up;
meanwhile a sampler that does not move at all is found by that.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gavel.base.errors import GavelError
from gavel.trainer.backends.publish_evidence import Movement, Scores, Verdict, verdict
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.data.training_batch import TrainedSequence
from gavel.trainer.engines.protocol import Engine, EngineError
from gavel.trainer.policy.policy import Policy

_SEQUENCES, _MAX_TOKENS = 2, 256
"""Of a probe, and tokens of each."""
FLOOR = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.005}
"""Nats per token below which a gap is always rounding, while that is not known yet."""
_FLOOR_ONCE_KNOWN = 0.1
"""The share of it that stays a floor."""
_REMEMBERED = 20
"""Gaps from which the rounding of sampler and learner is known."""
_FIRST = 5
"""Publications on a probe whose gaps are rounding, since what they change is not told from it yet."""

LearnerLogprobs = Callable[..., torch.Tensor]
"""The learner's log-probs of the trained tokens of one or more sequences, computed in one pass. `[T]`"""


class PublishError(GavelError):
    """The sampler does not follow the adapter that was published."""


@dataclass(slots=True)
class _Probe:
    token_ids: list[list[int]]
    earlier: Scores
    """Under the adapter that was proven last."""
    last: Scores
    """Under the adapter that was published last."""
    adapter: torch.Tensor
    """The fingerprint of that."""
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
            served = self._served(probe, new)
        if served in ("earlier", "another"):
            raise not_live(
                f"the sampler still serves an earlier adapter ({gaps.mean():.3g} nats a token from the new one)"
                if served == "earlier"
                else f"the sampler serves another adapter ({gaps.mean():.3g} nats a token from the learner)"
            )
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

    def _served(self, probe: _Probe, new: Scores) -> Verdict:
        floor = FLOOR[self._policy.dtype] * (1 if len(self._gaps) <= _FIRST else _FLOOR_ONCE_KNOWN)
        found = verdict(new, probe.earlier, probe.last, max(self._gaps), floor)
        still = self._movement.stands_still(new, probe.last, self._served_logprobs(probe.token_ids, new.learner.device))
        return "earlier" if still and found == "unknown" else found

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
    """Those with most tokens to learn, of different groups where there are several."""

    def learnt(each: TrainedSequence) -> tuple[bool, int]:
        return each.advantage != 0, sum(each.tokens.sampled[:longest])

    first, *others = sorted(sequences, key=learnt, reverse=True)
    others.sort(key=lambda each: each.group == first.group)
    return [each.tokens.token_ids[:longest] for each in [first, *others][:_SEQUENCES]]


def all_trained(ids: list[int]) -> TokenSequence:
    """Every token but the first."""
    return TokenSequence(ids, [False] + [True] * (len(ids) - 1), [0.0] * len(ids), [1.0] * len(ids))
