"""The proof that each sampler serves the learner's adapter finds one that stays behind, and passes for rounding."""

import logging
import re
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gavel.trainer.backends.proof import FEWEST, PublishCheck, PublishError, Scores, Verdict, prove_engine, verdict
from gavel.trainer.config import LoraSettings, PolicySettings, TrainConfig, VllmSettings
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.data.training_batch import TrainedSequence
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.engines import engine_pool
from gavel.trainer.engines.engine_pool import EnginePool
from gavel.trainer.engines.protocol import Sampled, SamplingRequest
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.model import TrainableModel
from gavel.trainer.policy.policy import Policy, load_base, source_of
from tests.trainer.conftest import (
    MakeEngine,
    WholeModel,
    a_group,
    a_model,
    full_logprobs,
    registered,
    sequence,
    stirred,
    tiny_model,
)
from tests.trainer.engines.test_pool import until
from tests.trainer.engines.vllm_stand_in import StandIn

FLOOR = 0.02
ROUNDING = 0.02
LORA = LoraSettings(rank=4)
CONFIG = TrainConfig(learning_rate=1e-2)


def share(found, served, *, change, tokens=300, moved=1.0, common=0.0, flips=0.0, bias=0.0) -> float:
    """The share of simulated publications with such a verdict.

    An update moves the part `moved` of the log-probs, by `change` nats over all (standard deviation). All tokens of a
    sequence have the part `common` of their rounding's variance in common. The part `flips` is routed to other experts:
    half a nat off. `bias`: what stays between sampler and learner from adapter to adapter.
    """
    generator = torch.Generator().manual_seed(0)

    def normal() -> torch.Tensor:
        return torch.randn(tokens, generator=generator)

    def hit(part: float) -> torch.Tensor:
        return torch.rand(tokens, generator=generator) < part

    def rounding() -> torch.Tensor:
        halves = torch.randn(2, generator=generator).repeat_interleave(tokens // 2)
        noise = (1 - common) ** 0.5 * normal() + common**0.5 * halves
        return ROUNDING * noise + 0.5 * hit(flips) * normal()

    def judged() -> Verdict:
        base, steady = -2 - normal().abs(), bias * normal()
        update = hit(moved) * change * normal() / moved**0.5
        earlier = Scores(base + rounding(), base + steady + rounding())
        truth = {"new": update, "earlier": 0 * update, "another": 0.5 * normal()}[served]
        new = Scores(base + update + rounding(), base + steady + truth + rounding())
        seen = [(steady + rounding() - rounding()).abs().mean().item() for _ in range(6)]
        return verdict(new, earlier, earlier, max(seen), FLOOR)

    return sum(judged() in found for _ in range(60)) / 60


KINDS = {
    "independent rounding": {},
    "a few tokens": {"tokens": FEWEST},
    "rounding in common": {"common": 0.5},
    "experts routed otherwise": {"flips": 0.05},
    "a server that rounds otherwise": {"bias": 0.1},
    "one token in ten moves": {"moved": 0.1},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [0.0, 0.02, 0.2])
def test_a_healthy_publication_and_a_lost_one_are_never_taken_for_each_other(change: float, kind: str) -> None:
    assert share({"earlier", "another"}, "new", change=change, **KINDS[kind]) == 0
    assert share({"new"}, "earlier", change=change, **KINDS[kind]) == 0


@pytest.mark.parametrize("kind", ["independent rounding", "rounding in common", "one token in ten moves"])
@pytest.mark.parametrize("change", [8 * ROUNDING, 1.0])
def test_a_lost_publication_is_found_from_a_few_times_the_rounding_on(change: float, kind: str) -> None:
    assert share({"earlier"}, "earlier", change=change, **KINDS[kind]) > 0.85
    assert share({"new"}, "new", change=change, **KINDS[kind]) > 0.85


def test_a_sampler_that_no_bit_changes_is_stale_at_any_rate() -> None:
    torch.manual_seed(0)
    base = -2 - torch.randn(300).abs()
    moved, *scores = (base + ROUNDING * torch.randn(300) for _ in range(3))
    before = Scores(*scores)
    here_and_there = torch.where(torch.arange(300) % 2 == 0, moved, before.learner)
    for learner, found in ((moved, "earlier"), (before.learner, "unknown"), (here_and_there, "unknown")):
        assert verdict(Scores(learner, before.sampler), before, before, 0.02, FLOOR) == found


IDS = [(7 * n) % 800 for n in range(150)]


class LiveSampler:
    def __init__(self, dtype: str) -> None:
        base = load_base(EMBEDDED_POLICY, getattr(torch, dtype), "cpu")
        self.max_context = 256
        self.engine = TransformersEngine(base, slots=2, max_context=self.max_context)
        self.policy = Policy(EMBEDDED_POLICY, LORA, settings=PolicySettings(dtype=dtype))
        self.engine.publish(self.policy, 0)
        self.noise = 0.0
        """Makes its scores differ from call to call, as those of a server under load."""
        self.check = PublishCheck(self, self.policy, self._learned)
        self._draw = torch.Generator().manual_seed(0)

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
                    parameter.add_(rate * parameter.grad.sign())
                    parameter.grad = None
        if published:
            self.engine.publish(self.policy if published is True else published, 1)
        return self.check.after()

    def _learned(self, *batch: TokenSequence) -> torch.Tensor:
        with torch.no_grad():
            return trained_logprobs(self.policy, batch)


@pytest.fixture(params=["float32", "bfloat16"])
def sampler(request):
    found = LiveSampler(request.param)
    yield found
    found.engine.close()


@pytest.mark.parametrize("rate", [1e-7, 1e-3])
def test_every_publication_of_a_healthy_run_passes_and_the_adapter_of_another_one_is_found(sampler, rate: float):
    found = [sampler.step(rate, offset=31 * step) for step in range(4)]
    assert all(each["publish_gap_mean"] < 0.03 for each in found)
    if rate >= 1e-4:
        assert all(each["publish_change"] > each["publish_gap_mean"] for each in found)
    settings: Any = PolicySettings(dtype=str(sampler.policy.dtype).removeprefix("torch."))
    other = stirred(Policy(EMBEDDED_POLICY, LoraSettings(rank=4, seed=1), settings=settings), 0.05, seed=0)
    with pytest.raises(PublishError, match="another adapter"):
        sampler.step(1e-4, published=other)


@pytest.mark.parametrize("rate", [1e-5, 1e-3])
@pytest.mark.parametrize("healthy", [0, 3])
def test_a_publication_that_never_reached_the_sampler_is_found(sampler: LiveSampler, rate: float, healthy: int) -> None:
    for step in range(healthy):
        sampler.step(rate, offset=31 * step)
    with pytest.raises(PublishError, match="earlier adapter"):
        sampler.step(rate, published=False, offset=7)


def test_beside_noise_a_lost_publication_is_found_when_the_changes_have_added_up(sampler):
    sampler.noise = 0.03
    assert sampler.step(1e-6)["publish_proven"] == 0
    assert sampler.step(1e-6, published=False)["publish_proven"] == 0, "far below the noise"
    with pytest.raises(PublishError, match="earlier adapter"):  # noqa: PT012
        for _ in range(30):
            assert not sampler.step(5e-5, published=False)["publish_proven"]


@pytest.mark.parametrize("sampler", ["bfloat16"], indirect=True)
def test_beside_a_little_noise_a_sampler_that_is_stuck_is_found_within_five_publications_at_any_rate(sampler):
    sampler.noise = 3e-4
    for step in range(6):
        sampler.step(1e-5, offset=31 * step)
    with pytest.raises(PublishError, match="earlier adapter"):  # noqa: PT012
        for step in range(5):
            sampler.step(1e-5, published=False, offset=31 * step)


def plain(model: Any, *batch: TokenSequence) -> torch.Tensor:
    return torch.cat([full_logprobs(model, each.token_ids) for each in batch])


def serving(make_engine: MakeEngine, learner: Any, **settings: int) -> TransformersEngine:
    engine = make_engine(**settings)
    engine.publish(WholeModel(learner), 0)
    return engine


@pytest.mark.parametrize("wrong", ["share a prefix", "sampler and learner differ", "without the adapter"])
def test_what_engine_and_learner_compute_otherwise_is_refused(make_engine: MakeEngine, wrong: str) -> None:
    base, learner, tolerance, seen = tiny_model(), tiny_model(), torch.float32, None

    def leaking(*batch: Any) -> torch.Tensor:
        joined = full_logprobs(learner, [token for each in batch for token in each.token_ids])
        starts = [sum(len(each.token_ids) for each in batch[:n]) for n in range(len(batch))]
        return torch.cat([joined[start:][: len(each.token_ids) - 1] for start, each in zip(starts, batch, strict=True)])

    learned: Any = leaking if wrong == "share a prefix" else partial(plain, learner)
    if wrong == "sampler and learner differ":
        base = tiny_model(seed=1)
    if wrong == "without the adapter":
        tolerance, seen = torch.bfloat16, partial(plain, base)  # far beyond this change
        with torch.no_grad():
            for parameter in learner.parameters():
                parameter.mul_(1.01)
    with pytest.raises(PublishError, match=wrong):
        prove_engine(serving(make_engine, base), learned, 64, tolerance, seen)


class Spilling:
    """An engine some of whose conversations read another's cache: their log-probs are a nat off."""

    def __init__(self, engine: TransformersEngine, *, continued: bool) -> None:
        self.engine, self.continued, self.max_context = engine, continued, engine.max_context
        self.asked: list[SamplingRequest] = []
        self.scored = 0

    def submit(self, request: SamplingRequest) -> "Future[Sampled]":
        assert not self.scored, "nothing is scored before all is sampled"
        sampled = self.engine.submit(request).result()
        earlier = [list(each.prompt_ids) for each in self.asked]
        self.asked.append(request)
        if any(list(request.prompt_ids[: len(ids)]) == ids for ids in earlier) if self.continued else earlier:
            sampled = Sampled(sampled.token_ids, [each - 1 for each in sampled.logprobs], "length", 0)
        future: Future[Sampled] = Future()
        future.set_result(sampled)
        return future

    def score(self, token_ids: list[int]) -> list[float]:
        self.scored += 1
        return self.engine.score(token_ids)


@pytest.mark.parametrize(("continued", "where"), [(True, "in the second turn of a conversation"), (False, "1 nats$")])
def test_a_cache_that_spills_is_found_in_the_turn_where_it_does(make_engine, continued, where):
    learner = tiny_model()
    engine, learned = serving(make_engine, learner, max_context=16), partial(plain, learner)
    prove_engine(engine, learned, 64, torch.float32)
    spilling: Any = Spilling(engine, continued=continued)
    with pytest.raises(PublishError, match="cache does not fit this base model") as error:
        prove_engine(spilling, learned, 64, torch.float32)
    assert re.search(where, error.value.message)
    first, second, longer, other = (list(each.prompt_ids) for each in spilling.asked)
    assert longer[: len(first)] == first
    assert other[: len(second)] == second
    assert len(longer) != len(other)
    assert first[: len(first) // 2] == second[: len(first) // 2], "they share a prefix"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StandIn]]:
    monkeypatch.setattr(engine_pool, "_CHECK_SECONDS", 0.05)
    base = source_of(EMBEDDED_POLICY)
    running = [StandIn(base=base, max_context=512, policy=Policy(EMBEDDED_POLICY, LORA)) for _ in range(2)]
    yield running
    for server in running:
        server.close()


@asynccontextmanager
async def a_run(servers: list[StandIn], runs: Path) -> AsyncIterator[tuple[TrainableModel, EnginePool]]:
    settings = VllmSettings(urls=tuple(server.url for server in servers))
    async with registered(runs, a_model(lora=LORA), engine=settings, max_context=512) as (model, backend):
        yield model, backend._run(model)._engine


REWARDS: list[float | None] = [number / 6 for number in range(6)]


@pytest.mark.slow
async def test_a_server_that_keeps_the_earlier_adapter_is_found_beside_one_that_follows(servers, tmp_path):
    async with a_run(servers, tmp_path) as (model, _):
        group = await a_group(model, REWARDS)
        servers[1].ignores_adapters = True
        with pytest.raises(PublishError, match=f"at {servers[1].url}: .*earlier adapter"):
            await model.train([group], CONFIG)
    assert not (tmp_path / "tests" / "clerk" / "checkpoints" / "000001").exists()


@pytest.mark.slow
async def test_a_server_that_dies_in_a_step_costs_no_group_and_is_taken_back_once_proven(servers, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "gavel")
    async with a_run(servers, tmp_path) as (model, pool):
        servers[1].ends_after = 1
        group = await a_group(model, REWARDS)
        assert (len(group.trajectories), group.exceptions) == (6, [])
        for trajectory in group:
            seen: list[int] = []
            for turn in trajectory.choices():
                assert turn.prompt_token_ids[: len(seen)] == seen, "the conversation goes on from the very tokens"
                seen = [*turn.prompt_token_ids, *turn.token_ids]
        result = await model.train([group], CONFIG)
        assert (result.step, result.metrics["trajectories_trained"]) == (1, 6)
        assert result.metrics["logprob_drift"] < 1e-4
        assert result.metrics["samplers"] == 1
        assert result.metrics["requests_restarted"] >= 1
        servers[1].start_again()
        until(lambda: pool._members[1].state == "back")
        before = len(servers[1].sampled_by)
        group = await a_group(model, REWARDS)
        assert len(servers[1].sampled_by) == before, "it serves nothing before it has the adapter"
        result = await model.train([group], CONFIG)
        assert result.metrics["samplers"] == 2
        assert result.metrics["publish_gap"] < 1e-3
        before = len(servers[1].sampled_by)
        assert {trajectory.policy_version for trajectory in await a_group(model, REWARDS)} == {2}
        assert len(servers[1].sampled_by) > before
    assert sum("begins again on the others" in record.getMessage() for record in caplog.records) == 1
    assert sum("is back" in record.getMessage() for record in caplog.records) == 1
