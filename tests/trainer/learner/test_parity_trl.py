"""Losses and gradients against TRL's own code, on random ragged off-policy batches with tokens in between that no
policy sampled.

TRL's loss is a method of its trainer; it is run here on a stand-in for the trainer that holds nothing but settings,
with the log-probs given to it as they are.
"""

import itertools
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="TRL is in the dev extra")

from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

from gavel.trainer.config import Cispo, ClippedSurrogate, Gspo, Loss, Reinforce, SamplerCorrection, TrainConfig
from gavel.trainer.learner.losses import TokenScores, token_losses, token_weights

pytestmark = pytest.mark.slow

GROUPS, MEMBERS, LONGEST, CONSTANT = 3, 4, 23, 37
SIZE = GROUPS * MEMBERS
Columns = dict[str, torch.Tensor]


def random_inputs(seed: int) -> Columns:
    """Padded `[B, T]` columns; every sequence has at least one sampled token, and the ratios lie far from 1."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    ends = torch.randint(1, LONGEST + 1, (SIZE,), generator=generator)
    completion = torch.arange(LONGEST) < ends[:, None]
    sampled = torch.rand(SIZE, LONGEST, generator=generator) < 0.7
    sampled[:, 0] = True
    logprobs = -normal(SIZE, LONGEST).abs() * 2
    spread = torch.logspace(-3, 0, SIZE, dtype=torch.float64)[:, None]  # in nats; GSPO's clip is narrow, others wide
    return {
        "logprobs": logprobs,
        "old": logprobs + spread * normal(SIZE, LONGEST),
        "sampler": logprobs + spread * normal(SIZE, LONGEST),
        "reference": logprobs + spread * normal(SIZE, LONGEST),
        "advantages": normal(SIZE),
        "completion": completion.long(),
        "sampled": sampled.long(),
    }


def trl_trainer(**settings: Any) -> SimpleNamespace:
    """What `_compute_loss` reads of a trainer: one process, no accumulation, no entropy bonus, no router."""
    arguments = {"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1}
    arguments |= {name: settings.pop(name) for name in list(settings) if name in arguments}
    plain = {"aux_loss_enabled": False, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None}
    plain |= {"importance_sampling_level": "token", "beta": 0.0, "loss_type": "grpo", "use_vllm": False}
    plain |= {"epsilon_low": 0.2, "epsilon_high": 0.2, "vllm_importance_sampling_correction": True}
    plain |= {"max_completion_length": CONSTANT, "current_gradient_accumulation_steps": 1}
    return SimpleNamespace(
        **plain | settings,
        _entropy_bonus_enabled=False,
        args=SimpleNamespace(**arguments),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
    )


def trl_weights(columns: Columns, correction: SamplerCorrection) -> torch.Tensor:
    """TRL's importance weights, written out: it makes them in the middle of a method that samples."""
    difference = (columns["old"] - columns["sampler"]) * columns["completion"] * columns["sampled"]
    if correction.mode.startswith("sequence"):
        difference = difference.sum(-1, keepdim=True)
    weights = torch.exp(difference)
    if correction.mode.endswith("truncate"):
        return torch.clamp(weights, min=correction.floor, max=correction.cap)
    return weights.masked_fill((weights < correction.floor) | (weights > correction.cap), 0.0)


def by_trl(
    columns: Columns, correction: SamplerCorrection | None = None, trl: Any = GRPOTrainer, **settings: Any
) -> tuple[float, torch.Tensor]:
    """Loss, and gradient `[B, T]` by log-prob."""
    trainer = trl_trainer(use_vllm=correction is not None, **settings)
    logprobs = columns["logprobs"].clone().requires_grad_(True)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None)
    mask = columns["completion"] * columns["sampled"]
    inputs = {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(mask), 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": columns["completion"],
        "tool_mask": columns["sampled"],
        "advantages": columns["advantages"],
        "old_per_token_logps": columns["old"],
        "old_logps": (logprobs.detach() * mask).sum(1),  # of RLOO, on policy
        "ref_per_token_logps": columns["reference"],
        "num_items_in_batch": mask.sum(),
    }
    if correction is not None:
        inputs["importance_sampling_ratio"] = trl_weights(columns, correction)
    loss = trl._compute_loss(trainer, None, inputs)
    loss.backward()
    return loss.item(), logprobs.grad


def by_gavel(columns: Columns, config: TrainConfig) -> tuple[float, torch.Tensor]:
    """The same over flat trained tokens."""
    mask = (columns["completion"] * columns["sampled"]).bool()
    logprobs = columns["logprobs"].clone().requires_grad_(True)
    lengths = mask.sum(-1).tolist()
    counts = torch.tensor(lengths)
    scores = TokenScores(
        logprobs=logprobs[mask],
        old=columns["old"][mask],
        sampler=columns["sampler"][mask],
        advantages=columns["advantages"].repeat_interleave(counts),
        lengths=lengths,
        reference=columns["reference"][mask] if config.beta else None,
    )
    weights = token_weights(config.loss, lengths, [at // MEMBERS for at in range(len(lengths))])
    losses = token_losses(config, scores).losses
    loss = (losses * torch.tensor(weights, dtype=torch.float64).repeat_interleave(counts)).sum()
    loss.backward()
    return loss.item(), logprobs.grad


def assert_equal(found: tuple[float, torch.Tensor], expected: tuple[float, torch.Tensor]) -> None:
    assert abs(found[0] - expected[0]) < 1e-6
    assert (found[1] - expected[1]).abs().max() < 1e-7
    assert expected[1].abs().max() > 1e-4


LOSSES: list[tuple[Loss, dict[str, Any]]] = [
    *(
        (
            ClippedSurrogate(aggregation=aggregation, clip_low=low, clip_high=high, dual_clip=dual, constant_length=37),
            {"loss_type": aggregation, "epsilon_low": low, "epsilon_high": high, "delta": dual},
        )
        for aggregation, (low, high, dual) in itertools.product(
            ("grpo", "dapo", "dr_grpo"), [(0.2, 0.2, None), (0.2, 0.28, None), (0.1, 0.3, 1.5)]
        )
    ),
    (Gspo(), {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4}),
    (Cispo(), {"loss_type": "cispo", "epsilon_high": 5.0}),
    (Cispo(ratio_cap=1.2), {"loss_type": "cispo", "epsilon_high": 1.2}),
]
NAMES = [f"{loss.kind} {' '.join(str(value) for value in settings.values())}" for loss, settings in LOSSES]
CORRECTIONS = [
    None,
    *(
        SamplerCorrection(mode=mode, floor=floor, cap=cap)
        for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
        for floor, cap in [(0.0, 1.3), (0.7, 2.0)]
    ),
]
DIVERGENCES = [(0.0, False), (0.3, False), (0.3, True)]


@pytest.mark.parametrize(("loss", "settings"), LOSSES, ids=NAMES)
def test_every_loss_is_trls_with_every_divergence_and_correction(loss, settings):
    for seed, (correction, (beta, with_ratio)) in enumerate(itertools.product(CORRECTIONS, DIVERGENCES)):
        columns = random_inputs(seed)
        config = TrainConfig(loss=loss, beta=beta, kl_with_ratio=with_ratio, sampler_correction=correction)
        expected = by_trl(columns, correction, beta=beta, use_bias_correction_kl=with_ratio, **settings)
        assert_equal(by_gavel(columns, config), expected)


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_bnpo_is_trls_with_a_group_as_its_local_batch(beta):
    columns = random_inputs(0)
    parts = [
        by_trl({k: v[at : at + MEMBERS] for k, v in columns.items()}, loss_type="bnpo", beta=beta)
        for at in range(0, SIZE, MEMBERS)
    ]
    loss = sum(part[0] for part in parts) / GROUPS
    gradient = torch.cat([part[1] for part in parts]) / GROUPS
    config = TrainConfig(loss=ClippedSurrogate(aggregation="bnpo"), beta=beta)
    assert_equal(by_gavel(columns, config), (loss, gradient))


def test_reinforce_with_whole_sequences_has_the_gradient_of_trls_rloo_on_policy():
    columns = random_inputs(0)
    columns["sampled"] = torch.ones_like(columns["sampled"])  # TRL's RLOO knows no tokens but sampled ones
    _, expected = by_trl(columns, trl=RLOOTrainer)
    _, gradient = by_gavel(columns, TrainConfig(loss=Reinforce(aggregation="dr_grpo", constant_length=1)))
    assert torch.allclose(gradient, expected, atol=1e-7, rtol=0)
