"""A run over the embedded base whose checkpoints hold adapters that change it, without any training."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from gavel.trainer.config import LoraSettings
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.model_spec import TrainableSpec, describe_model
from gavel.trainer.policy.policy import Policy
from gavel.trainer.runs.checkpoints import Checkpoints
from gavel.trainer.runs.run_directory import FORMAT_VERSION
from gavel.trainer.serving.openai_server import EndpointServer
from tests.trainer.serving.served import serving

LORA = LoraSettings(rank=4, alpha=8)
STEPS = {10: 0.06, 11: 0.08, 12: 0.1}
"""Step -> how much its adapter changes: each goes on in the direction of the one before."""


def make_run(root: Path) -> Path:
    run = root / "desk" / "clerk"
    policy = Policy(EMBEDDED_POLICY, LORA)
    generator = torch.Generator().manual_seed(5)
    directions = [torch.randn(each.shape, generator=generator) for each in policy.parameters()]
    checkpoints = Checkpoints(run / "checkpoints")
    for step, size in STEPS.items():
        for (name, parameter), direction in zip(policy.adapter_parameters(), directions, strict=True):
            if ".lora_B" in name:  # the second of each pair of factors, which is 0 at first
                parameter.data = size * direction
        checkpoints.save(step, policy.save_adapter)
    spec = TrainableSpec(name="clerk", project="desk", base_model=EMBEDDED_POLICY, lora=LORA)
    described = {"format_version": FORMAT_VERSION, **describe_model(spec)}
    (run / "model.json").write_text(json.dumps(described))
    return run


@contextmanager
def served_step(run: Path, step: int | None) -> Iterator[EndpointServer]:
    policy = Policy(EMBEDDED_POLICY, LORA)
    if step is not None:
        policy.load_adapter(run / "checkpoints" / f"{step:06d}")
    with serving(policy) as server:
        yield server
