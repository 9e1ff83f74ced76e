"""Translates `backend.train`'s settings from ART's names to Gavel's `TrainConfig`.

    train_config({"learning_rate": 1e-5, "epsilon": 0.2}, trainer={}, groups=4, trajectories=32)

ART makes one Adam update for each trajectory; Gavel's updates take whole groups, so there is one for each group
(`mini_batches`), or fewer by `grad_accumulation_sequences`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from gavel.integrations.art.errors import NotInGavelError, ignored
from gavel.integrations.art.types import TrainSFTConfig
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import Cispo, ClippedSurrogate, Gspo, Loss, SamplerCorrection, SftConfig, TrainConfig

_NO_EFFECT: dict[str, tuple[object, str]] = {
    "advantage_balance": (0.0, "advantages count as they are"),
    "allow_training_without_logprobs": (False, "turns without token ids are left out, and counted"),
    "kimi_k2_tau": (None, "that loss is not among Gavel's"),
    "logprob_calculation_chunk_size": (1024, "log-probs are computed in chunks that fit"),
    "loss_fn_config": (None, "the loss has the settings of TrainConfig"),
    "mask_prob_ratio": (False, "ratios are clipped or capped"),
    "num_trajectories_learning_rate_multiplier_power": (0.0, "the rate is the one that is given"),
    "packed_sequence_length": (None, "sequences are packed to what fits"),
    "plot_tensors": (False, "the metrics say what was trained"),
    "precalculate_logprobs": (False, "ratios are taken against the sampler's own log-probs"),
    "save_checkpoint": (True, "every step leaves a checkpoint"),
    "scale_learning_rate_by_reward_std_dev": (False, "the rate is the one that is given"),
    "adam_params": (None, "set trainer_args"),
    **dict.fromkeys(("log_interval_seconds", "status_ewa_alpha", "total_scenarios"), (None, "the log has each step")),
}
"""Settings without a counterpart, with ART's defaults and Gavel's behaviour."""
_TRAINER = {"max_grad_norm": "max_gradient_norm", "weight_decay": "weight_decay"}


def train_config(
    given: Mapping[str, Any], trainer: Mapping[str, Any], *, groups: int, trajectories: int
) -> TrainConfig:
    """Translates the settings. Raises `NotInGavelError` for a loss that Gavel lacks."""
    rest = dict(given)
    take = rest.pop
    is_normalized = take("normalize_advantages", True)
    is_scaled = take("scale_rewards", True) and is_normalized
    truncated = take("truncated_importance_sampling", None)
    step, path = take("kl_penalty_reference_step", None), take("kl_ref_adapter_path", None)
    sequences = take("grad_accumulation_sequences", None)
    updates = groups if sequences is None else math.ceil(trajectories / sequences)
    config = TrainConfig(
        learning_rate=take("learning_rate", 5e-6),
        advantage="std" if is_scaled else "mean",
        loss=_take_loss(rest),
        beta=take("beta", None) or 0.0,
        kl_in_reward=take("kl_penalty_coef", None) or 0.0,
        reference=str(path) if path is not None else "base" if step is None else str(step),
        sampler_correction=None if truncated is None else SamplerCorrection(cap=truncated),
        mini_batches=max(1, min(groups, updates)),
        **_optimizer(trainer),
    )
    take("verbose", None)
    for name, value in rest.items():
        default, why = _NO_EFFECT.get(name, (None, "no such setting is known"))
        if value != default:
            ignored(f"train({name}=…)", why)
    return config


def _take_loss(rest: dict[str, Any]) -> Loss:
    """The loss with ART's defaults: cispo with its ratio in [0, 5], ppo with one in [.8, 1.2]."""
    is_ppo, kind = rest.pop("ppo", False), rest.pop("loss_fn", None)
    kind = kind or ("ppo" if is_ppo else "cispo")
    low, high = rest.pop("epsilon", None), rest.pop("epsilon_high", None)
    worst = rest.pop("max_negative_advantage_importance_sampling_weight", None)
    if rest.pop("importance_sampling_level", "token") != "token":
        return Gspo() if low is None else Gspo(clip_low=low, clip_high=low if high is None else high)
    if kind == "cispo":
        if worst is not None:
            ignored("train(max_negative_advantage_importance_sampling_weight=…)", "cispo caps every ratio alike")
        if low is not None and low < 1:
            ignored("train(epsilon=…) with cispo", "the ratio has a cap (epsilon_high) and no floor")
        return Cispo(ratio_cap=1 + (high if high is not None else 4.0 if low is None else low))
    if kind == "ppo":
        low = 0.2 if low is None else low
        high = low if high is None else high
        dual = worst if worst is not None and worst > 1 + high else None
        return ClippedSurrogate(clip_low=low, clip_high=high, dual_clip=dual)
    raise NotInGavelError(f"loss_fn={kind!r} is not among ART's losses", "Choose cispo or ppo.")


def _optimizer(trainer: Mapping[str, Any]) -> dict[str, Any]:
    for name in set(trainer) - {*_TRAINER, "adam_beta1", "adam_beta2"}:
        ignored(f"trainer_args[{name!r}]", "the optimizer is AdamW with a constant rate")
    settings = {ours: trainer[name] for name, ours in _TRAINER.items() if trainer.get(name) is not None}
    if "adam_beta1" in trainer or "adam_beta2" in trainer:
        settings["adam_betas"] = (trainer.get("adam_beta1", 0.9), trainer.get("adam_beta2", 0.95))
    return settings


_AUTO = 2
"""Default number of trajectories in a batch."""
_BATCHES = 16


def sft_parts(
    trajectories: Sequence[Trajectory], config: TrainSFTConfig
) -> Iterator[tuple[Sequence[Trajectory], SftConfig]]:
    """Each step's trajectories and settings: of a list of rates, the mean of up to 16 batches; a step with learning
    rate 0 is dropped.

    Raises `ValueError` when there are batches without a rate.
    """
    for name in config.model_extra or ():
        ignored(f"TrainSFTConfig({name}=…)", "no such setting is known")
    size = _AUTO if config.batch_size == "auto" else config.batch_size
    batches = math.ceil(len(trajectories) / size)
    given = config.learning_rate
    if isinstance(given, list) and len(given) < batches:
        raise ValueError(f"{batches} batches of {size} need as many learning rates; there are {len(given)}")
    rates, per_step = (given, _BATCHES) if isinstance(given, list) else ([given], max(1, batches))
    for start in range(0, batches, per_step):
        rate = fmean(rates[start : min(start + per_step, batches)])
        if rate > 0:
            part = trajectories[start * size : (start + per_step) * size]
            yield part, SftConfig(learning_rate=rate, batch_size=size)
