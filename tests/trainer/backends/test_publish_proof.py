"""The proof that an adapter is live passes for rounding, and for nothing else."""

from typing import Any

import pytest
import torch

from gavel.trainer.backends.publish_proof import PublishError, prove_engine, publish_gap
from tests.trainer.conftest import MakeEngine, WholeModel, full_logprobs, tiny_model


def test_an_engine_with_the_learners_weights_passes(make_engine: MakeEngine) -> None:
    engine, learner = make_engine(), tiny_model()
    engine.publish(WholeModel(learner), 0)

    def plain(whole: Any) -> torch.Tensor:
        return full_logprobs(learner, whole.token_ids)

    prove_engine(engine, lambda *batch: torch.cat([plain(each) for each in batch]), 64, torch.float32)
    assert (
        publish_gap(engine, lambda whole: full_logprobs(learner, whole.token_ids), [*range(60)], torch.float32) < 1e-4
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


def test_an_engine_that_kept_the_old_weights_is_refused(make_engine: MakeEngine) -> None:
    engine, learner = make_engine(), tiny_model(seed=1)
    engine.publish(WholeModel(tiny_model()), 0)
    with pytest.raises(PublishError, match="sampler and learner differ"):
        publish_gap(engine, lambda whole: full_logprobs(learner, whole.token_ids), [*range(9)], torch.float32)


def test_a_gap_that_is_no_number_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.publish(WholeModel(tiny_model()), 0)
    with pytest.raises(PublishError, match="nan"):
        publish_gap(engine, lambda whole: torch.full([len(whole.token_ids) - 1], torch.nan), [1, 2], torch.float32)


def test_a_sequence_is_cut_to_what_the_engine_can_score(make_engine: MakeEngine) -> None:
    engine, learner = make_engine(max_context=16), tiny_model()
    engine.publish(WholeModel(learner), 0)
    lengths: list[int] = []

    def logprobs(whole: Any) -> torch.Tensor:
        lengths.append(len(whole.token_ids))
        return full_logprobs(learner, whole.token_ids)

    publish_gap(engine, logprobs, [*range(40)], torch.float32)
    assert lengths == [15]
