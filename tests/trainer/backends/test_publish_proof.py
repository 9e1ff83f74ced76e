"""The proof that an adapter is live finds a sampler that stays behind, and passes for rounding."""

from typing import Any

import pytest
import torch

from gavel.trainer.backends.proof import PublishCheck, PublishError
from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.data.training_batch import TrainedSequence
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.policy.policy import Policy, load_base
from tests.trainer.conftest import MakeEngine, WholeModel, full_logprobs, sequence, tiny_model

IDS = [(7 * n) % 800 for n in range(150)]


def plain(model: Any, *batch: TokenSequence) -> torch.Tensor:
    return torch.cat([full_logprobs(model, each.token_ids) for each in batch])


class Sampler:
    """The embedded engine, where a publication can be lost."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.engine = TransformersEngine(load_base(EMBEDDED_POLICY, dtype, "cpu"), slots=2, max_context=256)
        self.policy = Policy(EMBEDDED_POLICY, LoraSettings(rank=4), settings=PolicySettings(dtype=names[dtype]))
        self.engine.publish(self.policy, 0)
        self.noise = 0.0
        """Makes its scores differ from call to call, as those of a server under load."""
        self.check = PublishCheck(self, self.policy, self._learned)  # type: ignore[arg-type]
        self._draw = torch.Generator().manual_seed(0)

    @property
    def max_context(self) -> int:
        return self.engine.max_context

    def score(self, token_ids: list[int]) -> list[float]:
        found = torch.tensor(self.engine.score(token_ids))
        return (found + self.noise * torch.randn(len(found), generator=self._draw)).tolist()

    def step(self, rate: float, *, published: Policy | bool = True, offset: int = 0) -> dict[str, float]:
        """An update as large for every parameter as Adam's first, on a batch of its own; then `published`, or ours."""
        ids = [(token + offset) % 800 for token in IDS]
        batch = [sequence(ids[:20], part, [-1.0] * len(part)) for part in (ids[20:90], ids[70:])]
        self.check.before([TrainedSequence(tokens, 1.0, group) for group, tokens in enumerate(batch)])
        if rate:
            trained_logprobs(self.policy, batch).mean().backward()
            with torch.no_grad():
                for parameter in self.policy.parameters():
                    assert parameter.grad is not None
                    parameter.add_(rate * parameter.grad.sign())
                    parameter.grad = None
        if published:
            self.engine.publish(self.policy if published is True else published, 1)
        return self.check.after()

    def _learned(self, *batch: TokenSequence) -> torch.Tensor:
        with torch.no_grad():
            return trained_logprobs(self.policy, batch)


names: dict[torch.dtype, Any] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


@pytest.fixture(params=names, ids=str)
def sampler(request):
    found = Sampler(request.param)
    yield found
    found.engine.close()


@pytest.mark.parametrize("rate", [1e-7, 1e-5, 1e-4, 1e-3])
def test_every_publication_of_a_healthy_run_passes(sampler: Sampler, rate: float) -> None:
    found = [sampler.step(rate, offset=31 * step) for step in range(4)]
    assert all(each["publish_gap_mean"] < 0.03 for each in found)
    if rate >= 1e-4:
        assert all(each["publish_change"] > each["publish_gap_mean"] for each in found)


@pytest.mark.parametrize("rate", [1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("healthy", [0, 3])
def test_a_publication_that_never_reached_the_sampler_is_found(sampler: Sampler, rate: float, healthy: int) -> None:
    for step in range(healthy):
        sampler.step(rate, offset=31 * step)
    with pytest.raises(PublishError, match="earlier adapter"):
        sampler.step(rate, published=False, offset=7)


def test_beside_noise_a_lost_publication_is_found_when_the_changes_have_added_up(sampler: Sampler) -> None:
    sampler.noise = 0.03
    assert sampler.step(1e-6)["publish_proven"] == 0
    assert sampler.step(1e-6, published=False)["publish_proven"] == 0, "far below the noise"
    with pytest.raises(PublishError, match="earlier adapter"):
        repeat(sampler, 30, published=False)


def test_beside_a_little_noise_a_sampler_that_is_stuck_is_found_within_five_publications_at_any_rate() -> None:
    sampler = Sampler(torch.bfloat16)
    try:
        sampler.noise = 3e-4
        small_steps(sampler, 6, published=True)
        with pytest.raises(PublishError, match="earlier adapter"):
            small_steps(sampler, 5, published=False)
    finally:
        sampler.engine.close()


def test_a_change_below_rounding_is_no_proof_but_adds_up_to_one(sampler: Sampler) -> None:
    sampler.noise = 0.03
    found = [sampler.step(1e-6, offset=31 * step) for step in range(3)]
    assert [each["publish_proven"] for each in found] == [0, 0, 0]
    repeat(sampler, 30)


def small_steps(sampler: Sampler, count: int, *, published: bool) -> None:
    for step in range(count):
        sampler.step(1e-5, published=published, offset=31 * step)


def repeat(sampler: Sampler, most: int, *, published: bool = True) -> None:
    """Larger steps until one is proven."""
    for _ in range(most):
        if sampler.step(5e-5, published=published)["publish_proven"]:
            return
    pytest.fail("nothing was proven")


def test_the_adapter_of_another_run_is_found(sampler: Sampler) -> None:
    sampler.step(1e-4)
    settings = PolicySettings(dtype=names[sampler.policy.dtype])
    other = Policy(EMBEDDED_POLICY, LoraSettings(rank=4, seed=1), settings=settings)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    with pytest.raises(PublishError, match="another adapter"):
        sampler.step(1e-4, published=other)


def test_an_adapter_that_did_not_change_ends_nothing(sampler: Sampler) -> None:
    for _ in range(2):
        assert sampler.step(0.0, published=False)["publish_proven"] == 0


def test_numbers_that_are_none_are_refused(sampler: Sampler) -> None:
    sampler.check.before([TrainedSequence(sequence(IDS[:20], IDS[20:], [-1.0] * 130), 1.0, 0)])
    with torch.no_grad():
        sampler.policy.parameters()[0].fill_(torch.nan)
    with pytest.raises(PublishError, match="not finite"):
        sampler.check.after()


def test_without_a_batch_there_is_nothing_to_prove(sampler: Sampler) -> None:
    sampler.check.before([])
    assert sampler.check.after() == {}


def test_a_sequence_is_cut_to_what_the_engine_can_score(make_engine: MakeEngine, policy: Policy) -> None:
    engine, learner = make_engine(max_context=16), tiny_model()
    engine.publish(WholeModel(learner), 0)
    lengths: list[int] = []

    def logprobs(*batch: TokenSequence) -> torch.Tensor:
        lengths.extend(len(each.token_ids) for each in batch)
        return plain(learner, *batch)

    PublishCheck(engine, policy, logprobs).before(
        [TrainedSequence(sequence([1, 2], [*range(38)], [-1.0] * 38), 1.0, 0)]
    )
    assert lengths == [15]
