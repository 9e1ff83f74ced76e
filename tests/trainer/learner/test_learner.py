"""One update: what it changes, what it does not, and that it can be taken up again exactly."""

import copy
import io
import math
import weakref
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from gavel.trainer.config import (
    Cispo,
    ClippedSurrogate,
    Gspo,
    LoraSettings,
    Loss,
    PolicySettings,
    Ppo,
    Reinforce,
    SamplerCorrection,
    TrainConfig,
)
from gavel.trainer.data.packing import unique_tokens
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.data.training_batch import Batch, TrainedSequence, mini_batches
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.learner import learner as learner_room
from gavel.trainer.learner.learner import Learner, LearnerError, learning_rate, penalize_advantages
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.policy.policy import Policy
from tests.trainer.conftest import gradient_of, sequence, stirred
from tests.trainer.test_families import forked

pytestmark = pytest.mark.slow

CONFIG = TrainConfig(learning_rate=1e-3)


def exact_policy(seed: int = 0) -> Policy:
    """The embedded policy in float64: equality of mathematics, whatever the order of this CPU's sums."""
    policy = Policy(EMBEDDED_POLICY, LoraSettings(rank=4, seed=seed))
    policy.model.double()
    return policy


@pytest.fixture
def fresh_policy() -> Policy:
    return exact_policy()


def make_sequences(policy: Policy, lengths: Sequence[int]) -> list[TokenSequence]:
    """Random tokens with the policy's own log-probs, as if it had sampled them at temperature 0.9."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for length in lengths:
        ids = torch.randint(0, 832, (length + 4,), generator=generator).tolist()
        tokens = sequence(ids[:4], ids[4:], [0.0] * length, 0.9)
        with torch.no_grad():
            tokens.logprobs[4:] = trained_logprobs(policy, [tokens]).tolist()
        found.append(tokens)
    return found


def make_batch(tokens: Sequence[TokenSequence], advantages: Sequence[float]) -> Batch:
    """Two sequences a group."""
    return Batch([TrainedSequence(*each, at // 2) for at, each in enumerate(zip(tokens, advantages, strict=True))])


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


@pytest.fixture
def batch(fresh_policy):
    tokens = make_sequences(fresh_policy, [5, 20, 11, 3, 20, 8])
    return make_batch(tokens, [0.5, -0.5, 0.25, -0.25, 1.0, -1.0])


@pytest.mark.parametrize(
    ("error", "settings", "remedy"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), {}, "gradient_checkpointing=True or micro_batch_tokens="),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), {}, "gradient_checkpointing=True"),
        (torch.OutOfMemoryError(""), {"gradient_checkpointing": True, "micro_batch_tokens": 1}, "Shorten"),
    ],
)
def test_what_does_not_fit_fails_with_advice_changes_nothing_and_holds_nothing(
    fresh_policy, batch, monkeypatch, error, settings, remedy
):
    held = []

    def fails(*_):
        circle = [torch.ones(3)]
        circle.append(circle)
        held.append(weakref.ref(circle[0]))
        raise type(error)(*error.args)

    monkeypatch.setattr(learner_room, "trained_scores", fails)
    before = fresh_policy.adapter_weights()
    with pytest.raises(LearnerError, match="unique tokens") as caught:
        Learner(fresh_policy).step(batch, TrainConfig(**settings))
    assert remedy in str(caught.value)
    assert all(torch.equal(*pair) for pair in zip(before, fresh_policy.adapter_weights(), strict=True))
    assert held[0]() is None, "activations are freed while the error is kept"


def test_passes_that_are_small_enough_keep_their_activations(fresh_policy, batch, monkeypatch):
    monkeypatch.setattr(learner_room, "LEAST_WHOLE", 1)
    switched, score = fresh_policy.checkpoint_gradients, learner_room.trained_scores
    monkeypatch.setattr(fresh_policy, "checkpoint_gradients", lambda on: (seen.append(on), switched(on)))

    def recording(policy, tokens, *more):
        sizes.append(unique_tokens(tokens))
        return score(policy, tokens, *more)

    monkeypatch.setattr(learner_room, "trained_scores", recording)
    one = unique_tokens([batch.sequences[1].tokens])
    for whole in (0, one - 1, one, 10**6):
        seen: list[bool] = []
        sizes: list[int] = []
        Learner(fresh_policy).step(batch, TrainConfig(micro_batch_tokens=10**6, whole_pass_tokens=whole))
        assert seen == [size > whole for size in sizes]


@pytest.mark.parametrize("settings", [{}, {"top_entropy": 0.5, "entropy_bonus": 0.1}], ids=["plain", "entropy"])
@pytest.mark.parametrize("micro_batch_tokens", [30, 10**6])
def test_loss_and_gradient_are_those_written_out(fresh_policy, batch, settings, micro_batch_tokens):
    config = TrainConfig(max_gradient_norm=1e9, micro_batch_tokens=micro_batch_tokens, **settings)
    metrics = Learner(fresh_policy).step(batch, config)
    policy = exact_policy()
    terms = []
    for trained in batch.sequences:
        ids = torch.tensor([trained.tokens.token_ids])
        logprobs = torch.log_softmax(policy.model(input_ids=ids).logits[0] / 0.9, -1)
        for place in range(4, ids.shape[1]):
            row = logprobs[place - 1]
            ratio = torch.exp(row[ids[0, place]] - trained.tokens.logprobs[place])
            terms.append((-ratio * trained.advantage, -(row.exp() * row).sum()))
    trained_count = math.ceil(config.top_entropy * len(terms))
    lowest = sorted((entropy.item() for _, entropy in terms), reverse=True)[trained_count - 1]
    losses = [(loss if entropy.item() >= lowest else 0.0) - config.entropy_bonus * entropy for loss, entropy in terms]
    loss = torch.stack([torch.as_tensor(each) for each in losses]).sum() / len(terms)
    loss.backward()
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    if config.top_entropy < 1:
        assert metrics["top_entropy_share"] == pytest.approx(trained_count / len(terms))
    for expected, found in zip(policy.parameters(), fresh_policy.parameters(), strict=True):
        torch.testing.assert_close(
            found.grad, expected.grad, atol=1e-5 + 1e-5 * expected.grad.abs().max().item(), rtol=1e-3
        )


@pytest.mark.parametrize("per", ["token", "sequence"])
def test_the_divergence_in_the_reward_is_that_from_the_given_reference(fresh_policy, batch, per):
    other = stirred(exact_policy(), 0.02)
    with torch.no_grad():
        k1 = [torch.tensor(s.tokens.logprobs[4:]) - trained_logprobs(other, [s.tokens]) for s in batch.sequences]
    config = TrainConfig(kl_in_reward=0.1, kl_in_reward_per=per, micro_batch_tokens=60, max_gradient_norm=1e9)
    learner = Learner(fresh_policy)
    learner.reference = other.adapter_weights()
    metrics = learner.step(batch, config)
    assert metrics["kl_in_reward"] == pytest.approx(torch.cat(k1).mean().item(), abs=1e-5)
    charged = zip(batch.sequences, penalize_advantages(batch.sequences, k1, config), strict=True)
    plain = exact_policy()
    Learner(plain).step(Batch([replace(s, advantages=own.tolist()) for s, own in charged]), CONFIG)
    found, expected = gradient_of(fresh_policy), gradient_of(plain)
    assert torch.cosine_similarity(found, expected, dim=0) > 0.99999


def test_dropout_is_drawn_by_the_step_alone_and_active_in_the_updates_pass_alone(batch):
    outcomes = []
    for dropout in (0.0, 0.5, 0.5):
        policy = Policy(EMBEDDED_POLICY, LoraSettings(rank=4, dropout=dropout))
        torch.manual_seed(len(outcomes))
        before = torch.get_rng_state()
        config = TrainConfig(learning_rate=1e-3, beta=0.1, sampler_correction=SamplerCorrection())
        learner = Learner(policy)
        metrics = [learner.step(batch, config) for _ in range(2)]
        assert torch.equal(before, torch.get_rng_state())
        outcomes.append((flat(policy.adapter_weights()), metrics))
        whole = [trained_logprobs(policy, [batch.sequences[0].tokens]) for _ in range(2)]
        assert torch.equal(*whole)
    assert not torch.allclose(outcomes[0][0], outcomes[1][0])
    assert torch.equal(outcomes[1][0], outcomes[2][0])
    assert outcomes[1][1] == outcomes[2][1]
    assert outcomes[0][1][0]["sampler_weight"] == outcomes[1][1][0]["sampler_weight"]


LOSSES: list[Loss] = [
    *(ClippedSurrogate(aggregation=aggregation) for aggregation in ("grpo", "dr_grpo", "bnpo")),
    Gspo(clip_low=0.1, clip_high=0.1),
    Cispo(),
    Reinforce(),
]
UNLIKE = SamplerCorrection(mode="sequence_truncate", cap=1.5, floor=0.5)


def off_policy(batch: Batch) -> Batch:
    """The batch as a sampler that was a little off would have made it."""
    generator = torch.Generator().manual_seed(1)
    for trained in batch.sequences:
        noise = 0.1 * torch.randn(len(trained.tokens.logprobs), generator=generator)
        trained.tokens.logprobs[:] = [lp + off for lp, off in zip(trained.tokens.logprobs, noise.tolist(), strict=True)]
    return batch


@pytest.mark.parametrize("correction", [None, UNLIKE])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.kind}-{getattr(loss, 'aggregation', '')}")
def test_no_loss_depends_on_how_its_micro_batches_are_cut(fresh_policy, batch, loss, correction):
    off_policy(batch)
    state = copy.deepcopy(fresh_policy.model.state_dict())
    outcomes = []
    for tokens in (1, 40, 10**6):
        fresh_policy.model.load_state_dict(state)
        config = TrainConfig(loss=loss, sampler_correction=correction, micro_batch_tokens=tokens, max_gradient_norm=1e9)
        metrics = Learner(fresh_policy).step(batch, config)
        outcomes.append((metrics["loss"], gradient_of(fresh_policy)))
    loss_value, gradient = outcomes[-1]
    assert gradient.norm() > 0
    for other_value, other in outcomes[:-1]:
        assert other_value == pytest.approx(loss_value, rel=1e-4, abs=1e-6)
        assert torch.allclose(other, gradient, atol=1e-6 * gradient.abs().max().item() + 1e-7, rtol=1e-3)


@pytest.mark.parametrize("correction", [None, UNLIKE])
def test_several_updates_are_those_of_their_mini_batches_one_after_the_other(fresh_policy, batch, correction):
    """Written out: the ratio of every update is taken against the batch's start, its mean over its own tokens; no bit
    of the base changes."""
    off_policy(batch)
    base = {name: p.clone() for name, p in fresh_policy.model.named_parameters() if not p.requires_grad}
    settings = {"learning_rate": 1e-2, "weight_decay": 0.1, "epochs": 2, "mini_batches": 3}
    metrics = Learner(fresh_policy).step(batch, TrainConfig(sampler_correction=correction, **settings))
    found = fresh_policy.adapter_weights()
    assert len(base) > 20
    assert all(torch.equal(p, base[name]) for name, p in fresh_policy.model.named_parameters() if name in base)

    policy = exact_policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    groups = [s.group for s in batch.sequences]
    sampler = [torch.tensor(s.tokens.logprobs[4:]) for s in batch.sequences]
    with torch.no_grad():
        start = [trained_logprobs(policy, [s.tokens]) for s in batch.sequences]
    for epoch in range(2):
        for part in mini_batches(groups, 3, f"0 {epoch}"):
            loss = torch.zeros(())
            for at in part:
                own = trained_logprobs(policy, [batch.sequences[at].tokens])
                weight = (start[at] - sampler[at]).sum().exp().clamp(0.5, 1.5) if correction else 1.0
                ratio = (own - (start if correction else sampler)[at]).exp()
                gain = batch.sequences[at].advantage
                loss = loss - weight * torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).sum()
            optimizer.zero_grad()
            (loss / sum(len(sampler[at]) for at in part)).backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
    assert metrics["updates"] == 6
    beginning = flat(exact_policy().adapter_weights())
    made, expected = flat(found) - beginning, flat(policy.adapter_weights()) - beginning
    assert (made - expected).norm() < 0.01 * expected.norm()


def test_one_update_needs_one_pass_and_what_else_is_asked_for_its_own(fresh_policy, batch):
    tokens = unique_tokens([sequence.tokens for sequence in batch.sequences])
    learner = Learner(fresh_policy)
    correction = SamplerCorrection()
    for config, passes in [
        (TrainConfig(), 1),
        (TrainConfig(sampler_correction=correction), 1),
        (TrainConfig(beta=0.1), 2),
        (TrainConfig(epochs=3), 3),
        (TrainConfig(epochs=3, sampler_correction=correction), 4),
    ]:
        assert learner.step(batch, config)["tokens_forwarded"] == passes * tokens


def test_the_metrics_show_how_far_the_policy_is_from_the_sampler_and_from_the_base(fresh_policy):
    tokens = make_sequences(fresh_policy, [8, 8])
    off = [math.log(2), -math.log(4)]
    for each, shift in zip(tokens, off, strict=True):
        each.logprobs[4:] = [value - shift for value in each.logprobs[4:]]
    metrics = Learner(fresh_policy).step(make_batch(tokens, [1.0, -1.0]), TrainConfig(beta=0.1))
    assert metrics["ratio_max"] == pytest.approx(2, rel=1e-3)
    assert metrics["ratio_min"] == pytest.approx(0.25, rel=1e-3)
    assert metrics["clip_fraction_high"] == metrics["clip_fraction_low"] == 0.5
    assert metrics["logprob_drift"] == pytest.approx(1.5 * math.log(2), rel=1e-3)
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)


def test_a_later_update_that_fails_takes_the_earlier_back_and_an_endless_gradient_changes_nothing(fresh_policy, batch):
    learner = Learner(fresh_policy)
    learner.step(batch, CONFIG)
    before, state = fresh_policy.adapter_weights(), copy.deepcopy(learner.state())
    updates, update = [], learner._update

    def fails_at_last(*given):
        updates.append(fresh_policy.adapter_weights())
        if len(updates) == 3:
            raise RuntimeError("a fault of the device")
        update(*given)

    learner._update = fails_at_last
    with pytest.raises(RuntimeError, match="a fault"):
        learner.step(batch, TrainConfig(learning_rate=1e-3, mini_batches=3))
    assert not torch.equal(flat(before), flat(updates[-1]))
    learner._update = update
    with pytest.raises(LearnerError, match="not finite"):
        learner.step(Batch([replace(batch.sequences[0], advantage=math.inf)]), CONFIG)
    assert torch.equal(flat(before), flat(fresh_policy.adapter_weights()))
    for number, moments in learner.state()["optimizer"]["state"].items():
        assert all(torch.equal(value, state["optimizer"]["state"][number][name]) for name, value in moments.items())


def test_the_learning_rate_is_the_one_of_the_schedule():
    constant = TrainConfig(learning_rate=1.0)
    assert [learning_rate(constant, update) for update in (0, 1, 1000)] == [1, 1, 1]
    warm = TrainConfig(learning_rate=1.0, warmup_steps=3)
    assert [learning_rate(warm, update) for update in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    decaying = TrainConfig(learning_rate=1.0, total_steps=4)
    assert [learning_rate(decaying, update) for update in range(6)] == [1, 0.75, 0.5, 0.25, 0, 0]
    both = TrainConfig(learning_rate=2.0, warmup_steps=1, total_steps=5)
    assert [learning_rate(both, update) for update in range(6)] == [1, 2, 1.5, 1, 0.5, 0]
    cosine = TrainConfig(learning_rate=2.0, total_steps=4, decay="cosine")
    half = math.sqrt(0.5)
    assert [learning_rate(cosine, step) for step in range(6)] == pytest.approx([2, 1 + half, 1, 1 - half, 0, 0])


def test_rounding_between_sampler_and_learner_clips_no_sequence_of_gspo():
    policy = Policy(EMBEDDED_POLICY, LoraSettings(), settings=PolicySettings(dtype="bfloat16"))
    tokens = make_sequences(policy, [40, 60, 50, 70, 45, 55])
    generator = torch.Generator().manual_seed(1)
    for each in tokens:  # as a sampler that rounds elsewhere
        noise = (0.02 * torch.randn(each.trained_tokens, generator=generator)).tolist()
        each.logprobs[4:] = [value + more for value, more in zip(each.logprobs[4:], noise, strict=True)]
    batch = make_batch(tokens, [0.5, -0.5, 0.25, -0.25, 1.0, -1.0])
    clipped = {}
    for loss in (Gspo(), ClippedSurrogate(clip_low=3e-4, clip_high=4e-4)):
        config = TrainConfig(learning_rate=1e-9, loss=loss, mini_batches=3)
        metrics = Learner(policy).step(batch, config)
        clipped[loss.kind] = metrics["clip_fraction_low"] + metrics["clip_fraction_high"]
    assert clipped["gspo"] < 0.01
    assert clipped["grpo"] > 0.3, "the same bounds against the sampler"


def test_a_restored_learner_makes_bitwise_the_same_next_update_of_adapter_and_value_head():
    schedule = {"learning_rate": 1e-3, "warmup_steps": 2, "total_steps": 10, "weight_decay": 0.01}
    config = TrainConfig(loss=Ppo(), mini_batches=2, **schedule)
    through, resumed = (Learner(Policy(EMBEDDED_POLICY, LoraSettings(rank=64))) for _ in range(2))
    batch = make_batch(make_sequences(through.policy, [12, 20, 8, 16]), [0.5, -0.5, 1.0, -1.0])
    batch = Batch([replace(s, rewards=[s.advantage] * s.tokens.trained_tokens) for s in batch.sequences])
    through.step(batch, config)
    saved = io.BytesIO()
    torch.save(through.state(), saved)
    weights = through.policy.adapter_weights()
    metrics = through.step(batch, config)
    saved.seek(0)
    resumed.policy.set_adapter_weights(weights)
    resumed.restore(torch.load(saved, weights_only=True))
    assert resumed.steps == 1
    assert resumed.step(batch, config) == metrics
    assert torch.equal(flat(through.policy.adapter_weights()), flat(resumed.policy.adapter_weights()))
    assert torch.equal(through.value_head.weight, resumed.value_head.weight)
    assert through.value_head.weight.abs().max() > 0


def test_each_shared_token_goes_through_the_model_once_and_with_checkpoints_twice(fresh_policy):
    batch, seen = forked(), []
    prefixes = {tuple(t.token_ids[: end + 1]) for t in batch for end in range(len(t.token_ids))}
    layer = fresh_policy.decoder().layers[0].mlp
    layer.register_forward_pre_hook(lambda _, given: seen.append((given[0].shape[1], layer.training)))
    for checkpointing, passes in ((False, 1), (True, 2)):
        seen.clear()
        fresh_policy.checkpoint_gradients(checkpointing)
        trained_logprobs(fresh_policy, batch).sum().backward()
        assert seen == [(len(prefixes), False)] * passes
