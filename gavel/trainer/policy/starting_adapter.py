"""Where a new run begins: with the adapter of another run's checkpoint, exactly, in place of one that changes nothing.

An adapter of another rank, scale or set of layers is refused. One that was converted would be another function by
rounding, or would have layers that never learn.
"""

import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gavel.trainer.config import LoraSettings
from gavel.trainer.policy.adapter_file import FILES, AdapterFile, AdapterFileError, read_adapter
from gavel.trainer.policy.loading import BaseModelError

if TYPE_CHECKING:
    from gavel.trainer.policy.policy import Policy

logger = logging.getLogger(__name__)


def start_from(policy: "Policy", directory: Path) -> None:
    """Gives the policy the adapter in `directory`. Raises `BaseModelError` when it does not fit."""
    adapter = read_start(directory, str(policy.device))
    _check(policy, adapter, directory)
    with torch.no_grad():
        for name, parameter in policy.adapter_parameters():
            parameter.copy_(adapter.weights[name])


def read_start(directory: Path, device: str) -> AdapterFile:
    """The adapter in `directory`. Raises `BaseModelError` when it cannot be read."""
    try:
        return read_adapter(directory, device)
    except AdapterFileError as error:
        raise BaseModelError(
            f"the checkpoint {str(directory)!r} {error}", "Name the checkpoint of another step, or of another run."
        ) from error


def adapter_base(directory: Path) -> str:
    """The base model that the adapter's own config names; empty where it names none, or cannot be read."""
    try:
        config = json.loads((directory / FILES[0]).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(config.get("base_model_name_or_path") or "") if isinstance(config, dict) else ""


def check_base(asked: str, trained: str, directory: Path) -> None:
    """Refuses an adapter of another model of the hub, and warns where a directory may be the same model.

    `asked` is the base of the new run and `trained` that of the adapter, as transformers finds them.
    """
    if not trained or os.path.realpath(asked) == os.path.realpath(trained) or asked == trained:
        return
    if Path(asked).is_dir() or Path(trained).is_dir() or os.path.isabs(trained):
        logger.warning("the adapter in %s was trained on %s, and goes on over %s", directory, trained, asked)
        return
    raise BaseModelError(
        f"the checkpoint {str(directory)!r} is an adapter of {trained!r}, not of {asked!r}",
        f"Train the same base model: --model {trained}",
    )


def check_lora(adapter: AdapterFile, lora: LoraSettings, directory: Path) -> None:
    """Raises `BaseModelError` for an adapter of another rank or scale; needs no base model."""
    what = f"the checkpoint {str(directory)!r} does not fit"
    if (adapter.rank, adapter.alpha, adapter.rslora) != (lora.rank, lora.alpha, lora.rslora):
        rslora = "--rslora" if adapter.rslora else "--no-rslora"
        raise BaseModelError(
            f"{what}: its adapter has rank {adapter.rank} and alpha {adapter.alpha:g}"
            f"{' with rsLoRA' if adapter.rslora else ''}, this run has rank {lora.rank} and alpha {lora.alpha}"
            f"{' with rsLoRA' if lora.rslora else ''}",
            f"Train with --lora-rank {adapter.rank} --lora-alpha {adapter.alpha:g} {rslora}; in code "
            f"LoraSettings(rank={adapter.rank}, alpha={adapter.alpha:g}, rslora={adapter.rslora}).",
        )


def _check(policy: "Policy", adapter: AdapterFile, directory: Path) -> None:
    check_lora(adapter, policy.lora, directory)
    what = f"the checkpoint {str(directory)!r} does not fit"
    own = dict(policy.adapter_parameters())
    targets = " ".join([f"--lora-target {name}" for name in adapter.targets] + ["--lora-experts"] * adapter.experts)
    layers = f"Train the layers that it has: {targets}; or name another checkpoint."
    differing = sorted(own.keys() ^ adapter.weights.keys())
    if differing:
        whose = "this run" if differing[0] in own else "it"
        raise BaseModelError(f"{what}: only {whose} has {differing[0]}", layers)
    for name, parameter in own.items():
        weight = adapter.weights[name]
        if weight.shape != parameter.shape:
            shapes = f"{list(weight.shape)} in place of {list(parameter.shape)}"
            raise BaseModelError(f"{what}: {name} is {shapes}", "It is an adapter of another base model: --model.")
        if not bool(weight.isfinite().all()):
            raise BaseModelError(f"{what}: {name} has weights that are not finite", "Name an earlier checkpoint.")
