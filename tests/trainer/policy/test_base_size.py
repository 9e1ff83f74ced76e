"""A base that does not fit into memory is refused by its config, before its weights are loaded."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.device_memory import DeviceMemory
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.policy.loading import BaseModelError
from gavel.trainer.policy.policy import Policy, check_room, load_config, storage_bytes


def test_a_base_larger_than_memory_is_refused_without_its_weights(tmp_path: Path, policy: Policy) -> None:
    AutoConfig.for_model("qwen3", hidden_size=16384, intermediate_size=65536, num_hidden_layers=90).save_pretrained(
        tmp_path
    )
    policy.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(BaseModelError, match=r"take [\d.]{5,} GiB in bfloat16, and [\d.]+ GiB") as error:
        Policy(str(tmp_path), LoraSettings(), "qwen3", PolicySettings(dtype="bfloat16"))
    assert f"gavel plan {tmp_path}" in error.value.remedy
    assert "policy.dtype" not in error.value.remedy


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_size_is_that_of_the_loaded_model(
    monkeypatch: pytest.MonkeyPatch, embedded_base: torch.nn.Module, dtype: torch.dtype, spare: int, fits: bool
) -> None:
    held = sum(each.numel() for each in embedded_base.parameters()) * dtype.itemsize
    held += sum(each.nbytes for each in embedded_base.buffers())
    assert dtype != torch.float32 or held == storage_bytes(embedded_base)
    monkeypatch.setattr(DeviceMemory, "free", lambda _: held + spare)
    config = load_config(EMBEDDED_POLICY)
    if fits:
        check_room(EMBEDDED_POLICY, config, dtype, "cpu")
        return
    with pytest.raises(BaseModelError, match="of memory is free") as error:
        check_room(EMBEDDED_POLICY, config, dtype, "cpu")
    assert ("--set model.policy.dtype=bfloat16" in error.value.remedy) == (dtype == torch.float32)


def test_what_is_published_quantized_is_not_judged_by_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceMemory, "free", lambda _: 0)
    config = load_config(EMBEDDED_POLICY)
    config.quantization_config = {"quant_method": "fp8"}
    check_room(EMBEDDED_POLICY, config, torch.bfloat16, "cpu")
