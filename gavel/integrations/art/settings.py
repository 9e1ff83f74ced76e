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
}
"""Settings without a counterpart, with ART's defaults and Gavel's behaviour."""
_TRAINER = {"max_grad_norm": "max_gradient_norm", "weight_decay": "weight_decay"}
_KNOWN = frozenset(
    {
        "beta",
        "epsilon",
        "epsilon_high",
        "grad_accumulation_sequences",
        "importance_sampling_level",
        "kl_penalty_coef",
        "kl_penalty_reference_step",
        "kl_ref_adapter_path",
        "learning_rate",
        "loss_fn",
        "max_negative_advantage_importance_sampling_weight",
        "normalize_advantages",
        "ppo",
        "scale_rewards",
        "truncated_importance_sampling",
        "verbose",
    }
)


def train_config(
    given: Mapping[str, Any], trainer: Mapping[str, Any], *, groups: int, trajectories: int
) -> TrainConfig:
    """Translates the settings. Raises `NotInGavelError` for a loss that Gavel lacks."""
    for name, value in given.items():
        default, why = _NO_EFFECT.get(name, (None, "no such setting is known"))
        if name not in _KNOWN and value != default:
            ignored(f"train({name}=…)", why)
    scaled = given.get("scale_rewards", True) and given.get("normalize_advantages", True)
    truncated = given.get("truncated_importance_sampling")
    return TrainConfig(
        learning_rate=given.get("learning_rate", 5e-6),
        advantage="std" if scaled else "mean",
        loss=_make_loss(given),
        beta=given.get("beta") or 0.0,
        kl_in_reward=given.get("kl_penalty_coef") or 0.0,
        reference=_reference(given),
        sampler_correction=None if truncated is None else SamplerCorrection(cap=truncated),
        mini_batches=_updates(given.get("grad_accumulation_sequences"), groups, trajectories),
        **_optimizer(trainer),
    )


def _make_loss(given: Mapping[str, Any]) -> Loss:
    """The loss with ART's defaults: cispo with its ratio in [0, 5], ppo with one in [.8, 1.2]."""
    kind = given.get("loss_fn") or ("ppo" if given.get("ppo") else "cispo")
    low, high = given.get("epsilon"), given.get("epsilon_high")
    worst = given.get("max_negative_advantage_importance_sampling_weight")
    if given.get("importance_sampling_level", "token") != "token":
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


def _reference(given: Mapping[str, Any]) -> str:
    step, path = given.get("kl_penalty_reference_step"), given.get("kl_ref_adapter_path")
    return str(path) if path is not None else "base" if step is None else str(step)


def _updates(sequences: int | None, groups: int, trajectories: int) -> int:
    wanted = groups if sequences is None else math.ceil(trajectories / sequences)
    return max(1, min(groups, wanted))


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
) -> Iterator[tuple[list[Trajectory], SftConfig]]:
    """Each step's trajectories and settings; a part with learning rate 0 is dropped.

    Raises `ValueError` when there are batches without a rate.
    """
    for name in config.model_extra or ():
        ignored(f"TrainSFTConfig({name}=…)", "no such setting is known")
    size = _AUTO if config.batch_size == "auto" else config.batch_size
    batches = [list(trajectories[start : start + size]) for start in range(0, len(trajectories), size)]
    rates = config.learning_rate
    if not isinstance(rates, list):
        if batches:
            yield list(trajectories), SftConfig(learning_rate=rates, batch_size=size)
        return
    if len(rates) < len(batches):
        raise ValueError(f"{len(batches)} batches of {size} need as many learning rates; there are {len(rates)}")
    for start in range(0, len(batches), _BATCHES):
        part = batches[start : start + _BATCHES]
        rate = fmean(rates[start : start + len(part)])
        if rate > 0:
            yield [member for batch in part for member in batch], SftConfig(learning_rate=rate, batch_size=size)
