"""A value head: turn rewards become advantages of tokens, and the head learns what to expect."""

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
import torch

from gavel.base.fields import FieldError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import ClippedSurrogate, LoraSettings, Ppo, SamplerCorrection, TrainConfig
from gavel.trainer.data import training_batch as room
from gavel.trainer.data.left_out import LeftOut
from gavel.trainer.data.packing import unique_tokens
from gavel.trainer.data.training_batch import Batch
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.learner.learner import Learner, LearnerError
from gavel.trainer.learner.logprobs import trained_scores, trained_values, valued_scores
from gavel.trainer.learner.losses import TokenScores, token_losses, token_weights
from gavel.trainer.learner.value_head import (
    explained_variance,
    value_estimates,
    value_head,
    value_losses,
    whiten,
)
from gavel.trainer.policy.policy import Policy
from tests.trainer.conftest import attempt, sampled_turn

pytestmark = pytest.mark.slow

PPO = TrainConfig(loss=Ppo(), learning_rate=1e-3)
RAW = Ppo(whiten=False)


class Anything:
    """A token space without bounds."""

    vocabulary = max_context = 10**9

    @staticmethod
    def decode(token_ids: Sequence[int]) -> str:
        return str(token_ids)


def make_batch(groups: Iterable[TrajectoryGroup], config: TrainConfig) -> Batch:
    return room.make_batch(groups, config, Anything())


def test_returns_are_advantages_before_whitening_plus_values():
    values = [torch.tensor([0.5, -0.25]), torch.tensor([1.0])]
    plain = value_estimates([[0, 1], [2]], values, RAW)
    white = value_estimates([[0, 1], [2]], values, Ppo())
    for one, other, own in zip(plain, white, values, strict=True):
        assert torch.allclose(one.returns, one.advantages + own)
        assert torch.equal(one.returns, other.returns)
    advantages = torch.cat([each.advantages for each in white])
    assert advantages.mean().item() == pytest.approx(0, abs=1e-6)
    assert advantages.std().item() == pytest.approx(1, abs=1e-6)


def test_a_single_advantage_has_nothing_to_be_whitened_by():
    assert whiten(torch.tensor([0.7])).tolist() == pytest.approx([0.7])
    assert whiten(torch.tensor([0.7, 0.7])).tolist() == [0, 0]


def test_explained_variance_is_one_for_true_values_and_none_for_a_constant():
    returns = torch.tensor([0.0, 1.0, 4.0])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(torch.full((3,), 9.0), returns) == pytest.approx(0)
    assert explained_variance(-returns, returns) == pytest.approx(-3)
    assert explained_variance(returns, torch.ones(3)) == 0


def member(reward: float | None, *step_rewards: float) -> Trajectory:
    turns = sampled_turn([1, 2], [3, 4]), sampled_turn([1, 2, 3, 4, 9], [5, 6])
    return attempt(*turns, reward=reward, step_rewards=list(step_rewards) or None)


def test_no_group_is_needed_to_compare_with():
    groups = [TrajectoryGroup([member(0.5, 1, 2)]), TrajectoryGroup([member(0.5), member(0.5)])]
    batch = make_batch(groups, PPO)
    assert (batch.groups, batch.trajectories) == (2, 3)
    assert [list(s.rewards) for s in batch.sequences] == [[0, 1, 0, 2.5], [0, 0, 0, 0.5], [0, 0, 0, 0.5]]
    assert not make_batch(groups, TrainConfig()).sequences


@pytest.mark.parametrize("unfit", [(1.0,), (1.0, 2.0, 3.0), (1.0, math.nan), (math.inf, 0.0)])
def test_step_rewards_that_do_not_fit_the_turns_are_left_out_and_counted(unfit):
    group = TrajectoryGroup([member(0.0, *unfit), member(1.0, 0.5, 0.5), member(None, 1.0, 1.0)])
    batch = make_batch([group, TrajectoryGroup([member(0.0, *unfit)]), TrajectoryGroup()], PPO)
    assert batch.left_out_members == {LeftOut.STEP_REWARDS_MISMATCH: 2, LeftOut.UNSCORED: 1}
    assert batch.left_out_groups == {LeftOut.NO_TRAINABLE_MEMBER: 2}
    assert (batch.groups, batch.trajectories) == (1, 1)
    assert make_batch([group], TrainConfig()).trajectories == 2


@pytest.mark.parametrize("settings", [{"advantage": "std"}, {"minimal_spread": 0.1}])
def test_what_compares_members_of_a_group_is_refused_beside_a_value_head(settings):
    with pytest.raises(FieldError, match="Ppo does not"):
        TrainConfig(loss=Ppo(), **settings)
    assert TrainConfig.model_validate(TrainConfig(loss=Ppo()).model_dump()).loss == Ppo()


def test_policy_and_value_losses_and_their_gradients_are_those_written_out_token_by_token():
    generator = torch.Generator().manual_seed(3)

    def normal(size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    lengths = [5, 1, 9]
    total = sum(lengths)
    old, old_values = -normal(total).abs(), normal(total)
    logprobs = (old + 0.4 * normal(total)).requires_grad_()
    values = (old_values + 0.4 * normal(total)).requires_grad_()
    rewards = [normal(length).tolist() for length in lengths]
    loss = Ppo(gamma=0.9, gae_lambda=0.8, clip_high=0.3, value_clip=0.25, dual_clip=2.0, aggregation="grpo")
    parts = value_estimates(rewards, old_values.split(lengths), loss)
    advantages, returns = (torch.cat([getattr(part, name) for part in parts]) for name in ("advantages", "returns"))
    weights = torch.tensor(token_weights(loss, lengths, [0, 1, 2]), dtype=torch.float64)
    weights = weights.repeat_interleave(torch.tensor(lengths))
    scores = TokenScores(logprobs=logprobs, old=old, sampler=old, advantages=advantages, lengths=lengths)
    policy_part = (token_losses(TrainConfig(loss=loss), scores).losses * weights).sum()
    value_part = (value_losses(values, old_values, returns, loss.value_clip) * weights).sum()
    found = torch.autograd.grad(policy_part + loss.value_coefficient * value_part, [logprobs, values])

    place, raw, targets = 0, [], []
    for own in rewards:
        length, known = len(own), old_values[place : place + len(own)].tolist()
        for at in range(length):
            later = [
                (0.9 * 0.8) ** (t - at) * (own[t] + 0.9 * (known[t + 1] if t + 1 < length else 0) - known[t])
                for t in range(at, length)
            ]
            raw.append(sum(later))
            targets.append(sum(later) + known[at])
        place += length
    mean = sum(raw) / total
    deviation = math.sqrt(sum((value - mean) ** 2 for value in raw) / (total - 1) + 1e-8)
    whole, place = torch.zeros((), dtype=torch.float64), 0
    for length in lengths:
        for at in range(place, place + length):
            advantage = (raw[at] - mean) / deviation
            ratio = torch.exp(logprobs[at] - old[at])
            gain = min(ratio * advantage, ratio.clamp(0.8, 1.3) * advantage)
            if advantage < 0 and gain < 2.0 * advantage:
                gain = torch.tensor(2.0 * advantage, dtype=torch.float64)
            held = old_values[at] + (values[at] - old_values[at]).clamp(-0.25, 0.25)
            missed = max((values[at] - targets[at]) ** 2, (held - targets[at]) ** 2)
            whole = whole + (-gain + 0.1 * missed / 2) / (length * len(lengths))
        place += length
    expected = torch.autograd.grad(whole, [logprobs, values])
    assert (policy_part + loss.value_coefficient * value_part).item() == pytest.approx(whole.item(), abs=1e-9)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() < 1e-7
        assert other.abs().max() > 1e-3


def test_values_of_a_packed_group_are_those_of_each_sequence_by_itself(policy):
    batch = [s.tokens for s in make_batch([TrajectoryGroup(two_turns(policy, at) for at in range(4))], PPO).sequences]
    assert unique_tokens(batch) < sum(len(tokens.token_ids) for tokens in batch)
    head = value_head(policy.head().in_features, policy.device)
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        together, scores = trained_values(policy, head, batch), valued_scores(policy, head, batch)
        for tokens, own in zip(batch, together.split([each.trained_tokens for each in batch]), strict=True):
            hidden = policy.decoder()(input_ids=torch.tensor([tokens.token_ids])).last_hidden_state[0]
            before = [place - 1 for place, sampled in enumerate(tokens.sampled) if sampled]
            assert torch.allclose(own, head(hidden[before])[:, 0], atol=1e-4)
        assert torch.equal(scores[2], together)
        assert all(torch.equal(*pair) for pair in zip(scores, trained_scores(policy, batch), strict=False))


WANTED, TURN_PROMPT = 762, [3, 1, 4, 1]


def two_turns(policy: Policy, seed: int) -> Trajectory:
    """One sampled token, a tool's answer, two more sampled tokens; only the first token is worth something."""
    generator = torch.Generator().manual_seed(seed)

    def turn(prompt: list[int], size: int):
        ids, logprobs = list(prompt), []
        for _ in range(size):
            with torch.no_grad():
                logits = policy.model(input_ids=torch.tensor([ids])).logits[0, -1].float()
            ids.append(int(torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)))
            logprobs.append(torch.log_softmax(logits, -1)[ids[-1]].item())
        return sampled_turn(prompt, ids[len(prompt) :], logprobs), ids

    first, ids = turn(TURN_PROMPT, 1)
    second, _ = turn([*ids, 20, 21], 2)
    return attempt(first, second, reward=0.0, step_rewards=[float(ids[-1] == WANTED), 0.0])


def probability(policy: Policy) -> float:
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([TURN_PROMPT])).logits[0, -1].float()
    return torch.softmax(logits, -1)[WANTED].item()


@pytest.mark.slow
def test_a_token_that_earns_a_step_reward_becomes_likelier_and_the_values_come_to_explain_the_returns(fresh_policy):
    learner, before, metrics = Learner(fresh_policy), probability(fresh_policy), []
    config = TrainConfig(loss=Ppo(gae_lambda=1.0, value_learning_rate=3e-3), learning_rate=1e-3)
    for step in range(5):
        members = [two_turns(fresh_policy, 100 * step + at) for at in range(24)]
        assert not make_batch([TrajectoryGroup(members)], TrainConfig()).sequences
        metrics.append(learner.step(make_batch([TrajectoryGroup(members)], config), config))
    assert before < 0.3
    assert probability(fresh_policy) > 0.8
    assert metrics[0]["explained_variance"] == 0
    assert metrics[-1]["explained_variance"] > 0.5
    assert metrics[0]["return_mean"] < metrics[-1]["return_mean"] < 1 / 3
    assert learner.value_head is not None
    assert learner.value_head.weight.dtype == torch.float32


@pytest.fixture
def batch(policy) -> Batch:
    groups = (TrajectoryGroup(two_turns(policy, 10 * number + at) for at in range(3)) for number in range(4))
    return make_batch(groups, PPO)


@pytest.mark.slow
def test_the_cut_into_micro_batches_changes_no_update(fresh_policy, batch):
    state, outcomes = copy.deepcopy(fresh_policy.model.state_dict()), []
    for tokens in (1, 30, 10**6):
        fresh_policy.model.load_state_dict(state)
        learner = Learner(fresh_policy)
        config = TrainConfig(
            loss=Ppo(), learning_rate=1e-3, epochs=2, micro_batch_tokens=tokens, sampler_correction=SamplerCorrection()
        )
        metrics = learner.step(batch, config)
        assert learner.value_head is not None
        outcomes.append({**metrics, "tokens_forwarded": 0, "head": learner.value_head.weight.norm().item()})
    assert outcomes[0]["head"] > 0
    assert outcomes[1] == pytest.approx(outcomes[0], rel=1e-3, abs=1e-4)
    assert outcomes[2] == pytest.approx(outcomes[0], rel=1e-3, abs=1e-4)


def test_values_and_advantages_stay_those_of_the_batchs_start_through_all_updates(fresh_policy, batch):
    config = TrainConfig(loss=Ppo(value_clip=0.01, value_learning_rate=1.0), learning_rate=1e-3, epochs=3)
    learner = Learner(fresh_policy)
    metrics = learner.step(batch, config)
    once = Learner(Policy(EMBEDDED_POLICY, LoraSettings(rank=4))).step(batch, PPO)
    assert (metrics["return_mean"], metrics["explained_variance"]) == (once["return_mean"], once["explained_variance"])
    assert metrics["updates"] == 3
    assert metrics["tokens_forwarded"] == 2 * once["tokens_forwarded"]


@pytest.mark.slow
def test_an_update_with_a_value_head_can_be_taken_up_again_exactly(fresh_policy, batch, tmp_path):
    config = TrainConfig(loss=Ppo(), learning_rate=1e-3, epochs=2, mini_batches=2)
    learner = Learner(fresh_policy)
    learner.step(batch, config)
    fresh_policy.save_adapter(tmp_path)
    torch.save(learner.state(), tmp_path / "state.pt")
    learner.step(batch, config)
    other = Policy(EMBEDDED_POLICY, LoraSettings(rank=4, seed=9))
    other.load_adapter(tmp_path)
    resumed = Learner(other)
    resumed.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    resumed.step(batch, config)
    assert all(torch.equal(*pair) for pair in zip(fresh_policy.parameters(), other.parameters(), strict=True))
    assert learner.value_head is not None
    assert resumed.value_head is not None
    assert learner.value_head.weight.abs().max() > 0
    assert torch.equal(learner.value_head.weight, resumed.value_head.weight)
    assert str(learner.state()["optimizer"]) == str(resumed.state()["optimizer"])


def test_a_loss_without_values_leaves_the_value_head_alone(fresh_policy, batch):
    learner = Learner(fresh_policy)
    learner.step(batch, PPO)
    assert learner.value_head is not None
    before = learner.value_head.weight.clone()
    plain = Batch([replace(s, advantage=1.0 - 2 * (at % 2)) for at, s in enumerate(batch.sequences)])
    metrics = learner.step(plain, TrainConfig(loss=ClippedSurrogate(), learning_rate=1e-3))
    assert "value_loss" not in metrics
    assert torch.equal(learner.value_head.weight, before)


def test_a_value_gradient_that_is_not_finite_is_told_and_changes_nothing(fresh_policy, batch):
    learner = Learner(fresh_policy)
    before = [parameter.detach().clone() for parameter in fresh_policy.parameters()]
    learner._ensure_value_head().weight.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(LearnerError, match=r"not finite \(nan\)"):
        learner.step(batch, PPO)
    assert all(torch.equal(*pair) for pair in zip(before, fresh_policy.parameters(), strict=True))


def test_a_large_value_gradient_does_not_hold_the_policy_back(fresh_policy, batch):
    config = TrainConfig(loss=Ppo(value_coefficient=1.0), learning_rate=1e-3, max_gradient_norm=0.1)
    huge = Batch([replace(s, rewards=[1e4 * reward for reward in s.rewards]) for s in batch.sequences])
    learner = Learner(fresh_policy)
    learner.step(huge, config)
    norms = [
        math.sqrt(sum(p.grad.square().sum().item() for p in group["params"] if p.grad is not None))
        for group in learner.optimizer.param_groups
    ]
    assert norms == pytest.approx([0.1, 0.1], rel=1e-3)
