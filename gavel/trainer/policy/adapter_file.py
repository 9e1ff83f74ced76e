"""A PEFT LoRA adapter as it lies in a directory: its weights, and what their product is multiplied by."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import load_peft_weights
from safetensors import SafetensorError

FILES = ("adapter_config.json", "adapter_model.safetensors")
"""Of a PEFT adapter."""


class AdapterFileError(ValueError):
    """The directory holds no LoRA adapter that can be read; who reads it says what to do."""


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

    @property
    def targets(self) -> list[str]:
        """The last part of the adapted layers' names, those of experts left out."""
        return sorted({name.rpartition(".")[2] for name in self._layers() if not _of_experts(name)})

    @property
    def experts(self) -> bool:
        """Whether it adapts the experts of a mixture."""
        return any(_of_experts(name) for name in self._layers())

    def _layers(self) -> set[str]:
        return {name.partition(".lora_")[0] for name in self.weights}


def _of_experts(name: str) -> bool:
    """PEFT names the adapter of a stacked weight by its module, or by the module inside this one."""
    return name.removesuffix(".base_layer").endswith("experts")


def read_adapter(directory: Path, device: str) -> AdapterFile:
    """Raises `AdapterFileError`."""
    try:
        config = json.loads((directory / FILES[0]).read_text(encoding="utf-8"))
        weights = load_peft_weights(str(directory), device=device)
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise AdapterFileError(f"cannot be read: {error}") from error
    if config.get("rank_pattern") or config.get("alpha_pattern") or config.get("bias", "none") != "none":
        raise AdapterFileError("has ranks or biases of single layers")
    return AdapterFile(rank, alpha, bool(config.get("use_rslora")), weights)
