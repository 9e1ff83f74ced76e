"""An adapter to deploy, made of bytes: no model is loaded."""

import json
import struct
from pathlib import Path

import pytest

from gavel.trainer.deploy.record import AdapterFacts, read_facts


def write_adapter(
    directory: Path, *, rank: int = 8, targets: tuple[str, ...] = ("q_proj", "v_proj"), fill: int = 0, size: int = 64
) -> Path:
    """A PEFT adapter whose tensors are `size` bytes each, all `fill`."""
    directory.mkdir(parents=True, exist_ok=True)
    header: dict[str, object] = {}
    at = 0
    for target in targets:
        for half in ("A", "B"):
            key = f"base_model.model.model.layers.0.self_attn.{target}.lora_{half}.weight"
            header[key] = {"dtype": "F32", "shape": [1, size // 4], "data_offsets": [at, at + size]}
            at += size
    encoded = json.dumps(header).encode()
    weights = struct.pack("<Q", len(encoded)) + encoded + bytes([fill]) * at
    (directory / "adapter_model.safetensors").write_bytes(weights)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(targets), "bias": "none"}
    config["base_model_name_or_path"] = "Qwen/Qwen3-8B"
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run, without a checkpoint that was really trained."""
    directory = tmp_path / "runs" / "desk" / "clerk"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def adapter(run: Path) -> AdapterFacts:
    directory = write_adapter(run / "checkpoints" / "000012")
    return read_facts(directory, project="desk", name="clerk", step=12, base_model="Qwen/Qwen3-8B")
