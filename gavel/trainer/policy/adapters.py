"""Adapters: the weights that one changes, its PEFT directory, where a run begins, and what a divergence is from.

    start_from(policy, directory)               the adapter of another run, exactly: of the same rank, scale and layers
    reference_weights(policy, directory)        tensors in the order of the parameters, for `Policy.with_weights`

One of another rank, scale or set of layers is refused as a start: it would be another function by rounding, or would
have layers that never learn. As a reference it may leave layers out, and its scale goes into B.
"""

import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import load_peft_weights
from peft.tuners.lora import LoraLayer, ParamWrapper
from safetensors import SafetensorError

from gavel.base.files import new_folder
from gavel.trainer.config import LoraSettings, TrainConfig
from gavel.trainer.kernels.fused_layers import factors_of
from gavel.trainer.policy.adapter import LoraFactors
from gavel.trainer.policy.loading import BaseModelError

if TYPE_CHECKING:
    from gavel.trainer.policy.policy import Policy


_ADAPTER = "default"


@dataclass(frozen=True, slots=True)
class AdaptedWeight:
    """W, of which the adapter makes W + scale * B A."""

    name: str
    """The weight's name in the plain model."""
    _layer: Any

    @property
    def weight(self) -> torch.nn.Parameter:
        """W itself."""
        wrapper = isinstance(self._layer, ParamWrapper)
        return self._layer.get_param() if wrapper else self._layer.get_base_layer().weight

    def delta(self) -> torch.Tensor:
        """scale * B A, of the shape of W."""
        return self._layer.get_delta_weight(_ADAPTER)

    def factors(self) -> LoraFactors:
        """Copies of A and B, with the scale."""
        if isinstance(self._layer, ParamWrapper):
            a, b, scale = factors_of(self._layer, _ADAPTER)
            return LoraFactors(self.name, a.detach().clone(), b.detach().contiguous(), scale)
        a, b = (half.get_parameter(f"{_ADAPTER}.weight") for half in (self._layer.lora_A, self._layer.lora_B))
        layer = self.name.removesuffix(".weight")
        return LoraFactors(layer, a.detach().clone(), b.detach().clone(), self._layer.scaling[_ADAPTER])


def adapted_weights(model: Any) -> Iterator[AdaptedWeight]:
    """The adapted weights of `model`, a base model wrapped by PEFT, under their names without PEFT."""
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            weight = module.parameter_name if isinstance(module, ParamWrapper) else "weight"
            yield AdaptedWeight(f"{name.replace('.base_layer', '')}.{weight}", module)


FILES = ("adapter_config.json", "adapter_model.safetensors")
"""The files of a PEFT adapter."""


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """One rank and one scale for all layers."""

    rank: int
    alpha: float
    rslora: bool
    weights: dict[str, torch.Tensor]
    """By the names of `Policy.adapter_parameters`."""

    @property
    def scale(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


def _read_adapter(directory: Path, device: str) -> AdapterFile:
    """Raises `BaseModelError`."""
    try:
        config = json.loads((directory / FILES[0]).read_text(encoding="utf-8"))
        weights = load_peft_weights(str(directory), device=device)
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
        if config.get("rank_pattern") or config.get("alpha_pattern") or config.get("bias", "none") != "none":
            raise ValueError("it has ranks or biases of single layers")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise BaseModelError(
            f"the adapter in {str(directory)!r} cannot be read: {error}",
            "Name the checkpoint of another step, or of another run.",
        ) from error
    return AdapterFile(rank, alpha, bool(config.get("use_rslora")), weights)


def check_adapter(directory: Path) -> None:
    """Raises `BaseModelError` when there is no PEFT adapter in `directory`."""
    missing = next((name for name in FILES if not (directory / name).is_file()), None)
    if missing is None:
        return
    newest = max((entry for entry in directory.glob("checkpoints/*") if (entry / FILES[1]).is_file()), default=None)
    raise BaseModelError(
        f"the reference {str(directory)!r} is no directory of an adapter: it has no {missing}",
        f"Name a checkpoint of that run, such as {newest}."
        if newest
        else "Name 'base', 'start', a step of this run, or the directory of a checkpoint (runs/…/checkpoints/000010).",
    )


def keep_reference(run: Path, checkpoint: Callable[[int], Path], policy: "Policy", config: TrainConfig) -> Path:
    """The directory `reference/…` of a run with its copy of the reference, made when it is first asked for.

    `start` is the policy as it is at that moment. Checkpoints are deleted and other runs moved; the copy stays. Raises
    `BaseModelError`.
    """
    source, kept = config.reference_path, run / "reference" / "start"
    if source is not None:
        kept = run / "reference" / f"path-{hashlib.sha256(os.path.abspath(source).encode()).hexdigest()[:16]}"
    elif config.reference != "start":
        source, kept = checkpoint(int(config.reference)), run / "reference" / f"step-{int(config.reference)}"
    if kept.is_dir():
        return kept
    if source is not None and config.reference_path is None and not source.is_dir():
        raise BaseModelError(
            f"the run has no checkpoint of step {config.reference}, which is to be the reference",
            "Name a step whose checkpoint is kept, the directory of another one, 'start' or 'base'.",
        )
    if source is not None:
        reference_weights(policy, source)  # what does not fit is not kept
    with new_folder(kept) as unfinished:
        if source is None:
            policy.save_adapter(unfinished)
        else:
            for file in FILES:
                shutil.copy2(source / file, unfinished / file)
    return kept


def reference_weights(policy: "Policy", directory: Path) -> list[torch.Tensor]:
    """The adapter in `directory` as the policy's parameters would hold it.

    Layers that it leaves alone get zeros; another scale goes into B. Raises `BaseModelError`.
    """
    check_adapter(directory)
    adapter = _read_adapter(directory, str(policy.device))
    own = dict(policy.adapter_parameters())
    weights = {name: torch.zeros_like(parameter) for name, parameter in own.items()} | adapter.weights
    if (misfit := adapter_misfit(policy, weights)) is not None:
        raise BaseModelError(
            f"the reference {str(directory)!r} does not fit: {misfit}",
            "Train with the same rank and layers as it, or choose reference='base' or 'start'.",
        )
    scales = {name: adapter.scale / policy.lora_scale if ".lora_B." in name else 1.0 for name in own}
    return [weights[name].to(parameter.dtype) * scales[name] for name, parameter in own.items()]


logger = logging.getLogger(__name__)


def start_from(policy: "Policy", directory: Path) -> None:
    """Gives the policy the adapter in `directory`. Raises `BaseModelError` when it does not fit."""
    weights = check_lora(directory, policy.lora, str(policy.device)).weights
    if (misfit := adapter_misfit(policy, weights)) is not None:
        # PEFT names the adapter of a stacked weight by its module, or by the module inside this one.
        layers = {name.partition(".lora_")[0].removesuffix(".base_layer") for name in weights}
        targets = sorted(
            {f"--lora-target {name.rpartition('.')[2]}" for name in layers if not name.endswith("experts")}
        )
        targets += ["--lora-experts"] * any(name.endswith("experts") for name in layers)
        raise BaseModelError(
            f"the checkpoint {str(directory)!r} does not fit: {misfit}",
            f"Train the base model and the layers that it is of (--model, {' '.join(targets)}), or name another one.",
        )
    policy.set_adapter_weights([weights[name] for name, _ in policy.adapter_parameters()])


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


def check_lora(directory: Path, lora: LoraSettings, device: str = "cpu") -> AdapterFile:
    """The adapter in `directory`; needs no base model.

    Raises `BaseModelError` for one that cannot be read, or of another rank or scale.
    """
    adapter = _read_adapter(directory, device)
    if (adapter.rank, adapter.alpha, adapter.rslora) != (lora.rank, lora.alpha, lora.rslora):
        rslora = "--rslora" if adapter.rslora else "--no-rslora"
        raise BaseModelError(
            f"the checkpoint {str(directory)!r} does not fit: its adapter has rank {adapter.rank} and alpha "
            f"{adapter.alpha:g}{' with rsLoRA' if adapter.rslora else ''}, this run has rank {lora.rank} and alpha "
            f"{lora.alpha}{' with rsLoRA' if lora.rslora else ''}",
            f"Train with --lora-rank {adapter.rank} --lora-alpha {adapter.alpha:g} {rslora}; in code "
            f"LoraSettings(rank={adapter.rank}, alpha={adapter.alpha:g}, rslora={adapter.rslora}).",
        )
    return adapter


def adapter_misfit(policy: "Policy", weights: Mapping[str, torch.Tensor]) -> str | None:
    """Why the weights of an adapter, by their names in its file, are not of this policy; None where they are."""
    own = dict(policy.adapter_parameters())
    if differing := sorted(own.keys() ^ weights.keys()):
        return f"only {'this run' if differing[0] in own else 'it'} has {differing[0]}"
    for name, parameter in own.items():
        if weights[name].shape != parameter.shape:
            return f"{name} is {list(weights[name].shape)} in place of {list(parameter.shape)}"
        if not weights[name].isfinite().all():
            return f"{name} is not finite"
    return None
