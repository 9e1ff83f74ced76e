"""Registration proves that an engine samples as the learner computes: turns, batches, continued conversations."""

import re
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from gavel.trainer.backends.proof import PublishError, prove_engine
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.engines.protocol import Sampled, SamplingRequest
from gavel.trainer.engines.transformers import TransformersEngine
from tests.trainer.conftest import MakeEngine, WholeModel, full_logprobs, tiny_model


def plain(model: Any, *batch: TokenSequence) -> torch.Tensor:
    return torch.cat([full_logprobs(model, each.token_ids) for each in batch])


def test_an_engine_with_the_learners_weights_passes(make_engine: MakeEngine) -> None:
    engine, learner = make_engine(), tiny_model()
    engine.publish(WholeModel(learner), 0)
    prove_engine(engine, lambda *batch: plain(learner, *batch), 64, torch.float32)
    prove_engine(
        engine, lambda *batch: plain(learner, *batch), 64, torch.float32, lambda *batch: plain(tiny_model(1), *batch)
    )


def test_a_learner_whose_sequences_see_each_other_is_refused(make_engine: MakeEngine) -> None:
    engine, learner = make_engine(), tiny_model()
    engine.publish(WholeModel(learner), 0)

    def leaking(*batch: Any) -> torch.Tensor:
        joined = full_logprobs(learner, [token for each in batch for token in each.token_ids])
        starts = [sum(len(each.token_ids) for each in batch[:n]) for n in range(len(batch))]
        return torch.cat([joined[start:][: len(each.token_ids) - 1] for start, each in zip(starts, batch, strict=True)])

    with pytest.raises(PublishError, match="share a prefix"):
        prove_engine(engine, leaking, 64, torch.float32)


def test_an_engine_with_other_weights_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.publish(WholeModel(tiny_model()), 0)
    with pytest.raises(PublishError, match="sampler and learner differ"):
        prove_engine(engine, lambda *batch: plain(tiny_model(seed=1), *batch), 64, torch.float32)


def test_an_engine_that_serves_the_base_without_its_adapter_is_refused(make_engine: MakeEngine) -> None:
    engine, learner = make_engine(), tiny_model()
    engine.publish(WholeModel(tiny_model()), 0)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.mul_(1.01)
    with pytest.raises(PublishError, match="without the adapter"):
        prove_engine(
            engine,
            lambda *batch: plain(learner, *batch),
            64,
            torch.bfloat16,  # whose tolerance is far beyond this change
            lambda *batch: plain(tiny_model(), *batch),
        )


class Spilling:
    """An engine some of whose conversations read another's cache: their log-probs are a nat off."""

    def __init__(self, engine: TransformersEngine, *, continued: bool) -> None:
        self.engine = engine
        self.continued = continued
        self.asked: list[SamplingRequest] = []
        self.scored = 0
        self.max_context = engine.max_context

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
@pytest.mark.parametrize("max_context", [16, 64, 1024])
def test_a_cache_that_spills_is_found_in_the_turn_where_it_does(
    make_engine: MakeEngine, continued: bool, where: str, max_context: int
) -> None:
    engine, learner = make_engine(max_context=max_context), tiny_model()
    engine.publish(WholeModel(learner), 0)
    prove_engine(engine, lambda *batch: plain(learner, *batch), 64, torch.float32)
    spilling: Any = Spilling(engine, continued=continued)
    with pytest.raises(PublishError, match="cache does not fit this base model") as error:
        prove_engine(spilling, lambda *batch: plain(learner, *batch), 64, torch.float32)
    assert re.search(where, error.value.message)
    first, second, longer, other = (list(each.prompt_ids) for each in spilling.asked)
    assert longer[: len(first)] == first
    assert other[: len(second)] == second
    assert len(longer) != len(other)
    assert first[: len(first) // 2] == second[: len(first) // 2], "they share a prefix"
