"""Who cannot have Liger's kernels is told so before any weight is loaded; test_liger_kernels.py tests what they do."""

import importlib.util

import pytest

from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.kernels.liger import LigerError, check_liger
from gavel.trainer.policy.loading import BaseModelError
from gavel.trainer.policy.policy import Policy

LIGER = PolicySettings(use_liger_kernel=True)


def refused(*_):
    raise AssertionError("the base is loaded")


def test_they_are_off():
    assert not PolicySettings().use_liger_kernel


def test_without_a_gpu_they_are_refused(monkeypatch):
    monkeypatch.setattr("gavel.trainer.policy.policy._device", lambda: "cpu")
    with pytest.raises(LigerError, match="CUDA device") as error:
        Policy(EMBEDDED_POLICY, LoraSettings(), settings=LIGER, load=refused)
    assert "use_liger_kernel" in error.value.remedy


def test_without_the_package_they_are_refused_naming_it(monkeypatch):
    monkeypatch.setattr("gavel.trainer.policy.policy._device", lambda: "cuda")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LigerError, match="not installed") as error:
        Policy(EMBEDDED_POLICY, LoraSettings(), settings=LIGER, load=refused)
    assert "pip install liger-kernel" in error.value.remedy


def test_beside_unsloths_kernels_they_are_refused():
    with pytest.raises(LigerError, match="kernels of its own"):
        check_liger("cuda", "unsloth")


def test_with_a_sharded_base_they_are_refused():
    with pytest.raises(BaseModelError, match="sharded") as error:
        Policy(EMBEDDED_POLICY, LoraSettings(), settings=LIGER, sharded=True)
    assert "use_liger_kernel" in error.value.remedy
