"""What a host must know of an adapter before anything is uploaded, read from its files alone, without torch."""

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gavel.trainer.deploy.errors import DeployError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_LARGEST_HEADER = 100_000_000


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """A checkpoint of a run as a host sees it."""

    directory: Path
    """Holds adapter_config.json and adapter_model.safetensors."""
    project: str
    name: str
    step: int
    base_model: str
    """As the run names it: a hub id, a directory, or a built-in model."""
    rank: int
    targets: tuple[str, ...]
    """Last parts of the adapted layers' names, sorted: k_proj, q_proj, …"""
    dtype: str
    """Of the weights, as safetensors writes it: F32, BF16."""
    size: int
    """Bytes of the weights."""
    sha256: str
    """Of the weights."""
    license: str | None
    """Of the base model, where its card is here."""
    special: tuple[str, ...] = ()
    """What goes beyond plain LoRA: rslora, dora, modules_to_save, embeddings, experts."""

    @property
    def base_is_local(self) -> bool:
        """Whether the base is a directory or a built-in model, which no host has."""
        return Path(self.base_model).is_dir() or self.base_model.startswith("embedded/")

    def files(self) -> list[Path]:
        """What is uploaded: the adapter's two files."""
        return [self.directory / CONFIG, self.directory / WEIGHTS]


def read_facts(directory: Path, *, project: str, name: str, step: int, base_model: str) -> AdapterFacts:
    """Raises `DeployError` for a directory that holds no readable adapter."""
    config = _config(directory)
    tensors = _header(directory / WEIGHTS)
    layers = [key.partition(".lora_")[0].removesuffix(".base_layer") for key in tensors if ".lora_" in key]
    if not layers:
        raise DeployError(f"{directory / WEIGHTS} holds no LoRA weights", "Name the checkpoint of another step.")
    special = [word for word, field in (("rslora", "use_rslora"), ("dora", "use_dora")) if config.get(field)]
    special += ["experts"] if config.get("target_parameters") else []
    special += ["modules_to_save"] if config.get("modules_to_save") else []
    special += ["embeddings"] if any(".lora_embedding_" in key or "embed_tokens" in key for key in tensors) else []
    with (directory / WEIGHTS).open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    return AdapterFacts(
        directory=directory,
        project=project,
        name=name,
        step=step,
        base_model=base_model,
        rank=int(config.get("r") or 0),
        targets=tuple(sorted({layer.rpartition(".")[2] for layer in layers})),
        dtype=next(str(entry["dtype"]) for key, entry in tensors.items() if ".lora_" in key),
        size=(directory / WEIGHTS).stat().st_size,
        sha256=sha256,
        license=_license(base_model),
        special=tuple(special),
    )


def _config(directory: Path) -> dict[str, Any]:
    try:
        config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DeployError(f"{directory} holds no adapter that can be read: {error}", "Name another step.") from error
    if not isinstance(config, dict):
        raise DeployError(f"{directory / CONFIG} is not a JSON object", "Name another step.")
    return cast("dict[str, Any]", config)


def _header(file: Path) -> dict[str, dict[str, Any]]:
    """The tensors of a safetensors file by name, from its header alone."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _LARGEST_HEADER:
                raise ValueError("its header has no such length")
            header = json.loads(stream.read(length))
    except (OSError, ValueError, struct.error) as error:
        raise DeployError(f"{file} cannot be read: {error}", "Name the checkpoint of another step.") from error
    return {key: entry for key, entry in header.items() if key != "__metadata__"}


def _license(base_model: str) -> str | None:
    from gavel.trainer.runs.model_card import base_license

    return base_license(base_model)
