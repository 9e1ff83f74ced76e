"""Who cannot have Liger's kernels is told so before any weight is loaded; test_liger_kernels.py tests what they do."""

import importlib.util

import pytest

from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.kernels.liger import LigerError, liger_is_used
from gavel.trainer.policy.policy import Policy

LIGER = PolicySettings(use_liger_kernel=True)


def refused(*_):
    raise AssertionError("the base is loaded")


@pytest.mark.parametrize(
    ("settings", "device", "sharded", "installed", "used"),
    [
        ({}, "cuda", False, True, True),
        ({}, "cuda", False, False, False),
        ({}, "cpu", False, True, False),
        ({}, "cuda", True, True, False),
        ({"loader": "unsloth"}, "cuda", False, True, False),
        ({"quantization": "4bit"}, "cuda", False, True, False),
        ({"quantization": "4bit", "use_liger_kernel": True}, "cuda", False, True, True),
        ({"use_liger_kernel": False}, "cuda", False, True, False),
    ],
)
def test_they_are_used_where_they_can_run_unless_it_is_said(monkeypatch, settings, device, sharded, installed, used):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: installed or None)
    assert liger_is_used(PolicySettings(**settings), device, sharded) is used


@pytest.mark.parametrize(("device", "remedy"), [("cpu", "use_liger_kernel"), ("cuda", "pip install liger-kernel")])
def test_without_a_gpu_or_the_package_they_are_refused(monkeypatch, device, remedy):
    monkeypatch.setattr("gavel.trainer.policy.policy._device", lambda: device)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LigerError) as error:
        Policy(EMBEDDED_POLICY, LoraSettings(), settings=LIGER, load=refused)
    assert remedy in error.value.remedy
