"""An adapter to deploy, made of bytes: no model is loaded."""

import json
import struct
from pathlib import Path

import pytest

from gavel.trainer.deploy.record import AdapterFacts, read_facts


def write_adapter(
    directory: Path, *, rank: int = 8, targets: tuple[str, ...] = ("q_proj", "v_proj"), fill: int = 0, size: int = 64
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    keys = [f"base_model.model.model.layers.0.self_attn.{t}.lora_{half}.weight" for t in targets for half in "AB"]
    header = {
        key: {"dtype": "F32", "shape": [1, size // 4], "data_offsets": [at * size, (at + 1) * size]}
        for at, key in enumerate(keys)
    }
    encoded = json.dumps(header).encode()
    weights = struct.pack("<Q", len(encoded)) + encoded + bytes([fill]) * size * len(keys)
    (directory / "adapter_model.safetensors").write_bytes(weights)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(targets), "bias": "none"}
    config["base_model_name_or_path"] = "Qwen/Qwen3-8B"
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def facts(directory: Path, base_model: str = "Qwen/Qwen3-8B") -> AdapterFacts:
    return read_facts(directory, project="desk", name="clerk", step=12, base_model=base_model)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "runs" / "desk" / "clerk"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def adapter(run: Path) -> AdapterFacts:
    return facts(write_adapter(run / "checkpoints" / "000012"))
