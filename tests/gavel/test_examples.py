"""examples/train_loop.py stays short and does what `model.train` does."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import gavel
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.embedded import EMBEDDED_POLICY
from tests.forked import script

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_loop.py"
pytestmark = pytest.mark.slow


def test_it_is_short_trains_and_prints_a_line_for_each_step(tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 120
    result = script(EXAMPLE, "1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("step  1: mean score 0.")


async def test_its_update_is_that_of_model_train(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("train_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    parts = example.Parts()
    try:
        groups = await example.roll_out(parts.model, 0)
        assert example.train(parts, groups, 1)["logprob_drift"] < 1e-4
        own = [weight.flatten().tolist() for weight in parts.policy.adapter_weights()]
    finally:
        parts.close()
    model = gavel.TrainableModel(name="loop", project="examples", base_model=EMBEDDED_POLICY, lora=parts.policy.lora)
    async with LocalBackend(tmp_path) as backend:
        await model.register(backend)
        assert (await model.train(groups, example.CONFIG)).step == 1
    saved = load_file(tmp_path / "examples" / "loop" / "checkpoints" / "000001" / "adapter_model.safetensors")
    assert sorted(own) == sorted(weight.flatten().tolist() for weight in saved.values())
