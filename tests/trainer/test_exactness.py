"""What is trained is what was sampled, in the very context that it was sampled in."""

from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import find_scenario
from gavel.trainer.data.token_sequences import sequences
from gavel.trainer.engines.protocol import Sampled, SamplingRequest
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.learner.logprobs import trained_logprobs
from tests.trainer.conftest import registered

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_every_trained_token_was_sampled_in_that_very_context_and_the_learner_agrees_with_the_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    engine_log: list[tuple[SamplingRequest, Sampled]] = []
    submit = TransformersEngine.submit

    def recording(self: TransformersEngine, request: SamplingRequest) -> "Future[Sampled]":
        future = submit(self, request)
        future.add_done_callback(lambda done: engine_log.append((request, done.result())))
        return future

    monkeypatch.setattr(TransformersEngine, "submit", recording)
    async with registered(tmp_path, "exact") as (model, backend):
        engine_log.clear()  # registration samples a few tokens of its own
        scenario = find_scenario("returns_desk")
        told = {"max_tokens": 64, "temperature": temperature}
        tasks = enumerate(scenario.sample("train", 48, seed=3))
        trajectories = list(await TrajectoryGroup(rollout(model, scenario, task, seed=n, **told) for n, task in tasks))
        policy = backend._run(model).policy

    assert any(trajectory.metrics["turns"] >= 4 for trajectory in trajectories), "multi-turn tool episodes are needed"
    sampled_in_context = {
        (tuple(request.prompt_ids), place, token): logprob
        for request, sampled in engine_log
        for place, (token, logprob) in enumerate(zip(sampled.token_ids, sampled.logprobs, strict=True))
    }
    contexts = {(tuple(request.prompt_ids) + tuple(sampled.token_ids)) for request, sampled in engine_log}
    trained = 0
    found = [tokens for trajectory in trajectories for tokens in sequences(trajectory)]
    assert len(found) == len(trajectories), "a tool episode is one sequence, from its first token to its last"
    for tokens in found:
        assert tuple(tokens.token_ids) in contexts
        turn_start = 0
        for place, own in enumerate(tokens.sampled):
            if not own:
                continue
            if not tokens.sampled[place - 1]:
                turn_start = place
            key = (tuple(tokens.token_ids[:turn_start]), place - turn_start, tokens.token_ids[place])
            assert sampled_in_context[key] == tokens.logprobs[place]
            trained += 1
    assert trained == sum(len(sampled.token_ids) for _, sampled in engine_log)

    with torch.no_grad():
        learner = trained_logprobs(policy, found)
    sampler = torch.tensor([lp for t in found for lp, own in zip(t.logprobs, t.sampled, strict=True) if own])
    torch.testing.assert_close(learner, sampler, atol=1e-4, rtol=0)
