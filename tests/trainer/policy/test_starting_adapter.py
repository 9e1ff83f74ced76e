"""The base model of an adapter that a run begins with, and adapters that were damaged."""

import logging
from pathlib import Path

import pytest
import torch

from gavel.trainer.config import LoraSettings
from gavel.trainer.embedded import EMBEDDED_PATH, EMBEDDED_POLICY
from gavel.trainer.policy.loading import BaseModelError
from gavel.trainer.policy.policy import Policy
from gavel.trainer.policy.starting_adapter import adapter_base, check_base, start_from
from tests.trainer.families import FAMILIES


def test_an_adapter_of_another_model_of_the_hub_is_refused() -> None:
    with pytest.raises(BaseModelError, match="Qwen/Qwen3-8B-Base") as error:
        check_base("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base", Path("adapter"))
    assert "--model Qwen/Qwen3-8B-Base" in str(error.value)


@pytest.mark.parametrize(
    ("asked", "trained", "warned"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", False),
        ("Qwen/Qwen3-8B", "", False),
        ("Qwen/Qwen3-8B", "/data/qwen3-8b", True),
        (str(EMBEDDED_PATH), f"{EMBEDDED_PATH}/", False),
        (str(EMBEDDED_PATH), "Qwen/Qwen3-8B", True),
    ],
)
def test_a_directory_may_hold_the_same_model(
    asked: str, trained: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check_base(asked, trained, Path("adapter"))
    assert bool(caplog.records) == warned


def test_experts_are_named_in_the_remedy(tmp_path: Path, policy: Policy) -> None:
    family = next(each for each in FAMILIES if each.name == "Qwen3-MoE")
    family.read_config().save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    with_experts, without = (
        Policy(str(tmp_path), LoraSettings(experts=experts), "qwen3", load=lambda *_: family.model())
        for experts in (True, False)
    )
    with_experts.save_adapter(tmp_path / "with")
    start_from(with_experts, tmp_path / "with")
    with pytest.raises(BaseModelError, match="only it has") as error:
        start_from(without, tmp_path / "with")
    assert "--lora-target v_proj --lora-experts;" in error.value.remedy


def test_an_adapter_whose_weights_are_not_finite_is_refused(tmp_path: Path) -> None:
    policy = Policy(EMBEDDED_POLICY, LoraSettings())
    with torch.no_grad():
        policy.parameters()[0][0, 0] = torch.inf
    policy.save_adapter(tmp_path)
    assert adapter_base(tmp_path) == str(EMBEDDED_PATH)
    with pytest.raises(BaseModelError, match="not finite"):
        start_from(Policy(EMBEDDED_POLICY, LoraSettings()), tmp_path)
