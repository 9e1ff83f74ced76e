"""How several servers are started: each on a GPU of its own."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gavel.trainer.config import VllmSettings
from gavel.trainer.engines import vllm_launch
from gavel.trainer.engines.protocol import EngineError
from gavel.trainer.engines.vllm_launch import Served, _arguments, _devices, check_startable, vllm_engine

SERVED = Served("org/base", torch.float32, "cuda", rank=8, slots=4, max_context=64, versions=1)


@pytest.fixture(autouse=True)
def _four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.parametrize(
    ("visible", "gpus"), [(None, ["2", "3"]), ("5, 7", ["5", "7"]), ("GPU-a,GPU-b,GPU-c", ["GPU-b", "GPU-c"])]
)
def test_replicas_take_the_last_gpus_that_this_process_sees(
    visible: str | None, gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _devices(2, "cuda") == gpus
    assert _devices(2, "cpu") == [None, None]


def test_more_replicas_than_gpus_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="5 replicas of vLLM need a GPU each, and there are 4") as error:
        vllm_engine(VllmSettings(replicas=5), SERVED, tmp_path)
    assert "Set replicas to 4" in error.value.remedy


def test_each_replica_sees_its_gpu_alone_and_has_a_port_and_a_log_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, str, Path]] = []

    def start(command: list[str], url: str, log: Path, environment: dict[str, str], **_: object) -> None:
        started.append((environment["CUDA_VISIBLE_DEVICES"], url, log))
        raise EngineError("this is as far as a machine without GPUs goes")

    monkeypatch.setattr(vllm_launch, "ServerProcess", start)
    with pytest.raises(EngineError, match="as far as"):
        vllm_engine(VllmSettings(replicas=2, python="/bin/sh"), SERVED, tmp_path)
    assert sorted((gpu, log.relative_to(tmp_path).as_posix()) for gpu, _, log in started) == [
        ("2", "vllm-logs/0.log"),
        ("3", "vllm-logs/1.log"),
    ]
    assert len({url for _, url, _ in started}) == 2


def test_experts_are_served_in_the_form_that_peft_writes(tmp_path: Path) -> None:
    served = replace(SERVED, experts=True)
    assert "--enable-mixed-moe-lora-format" in _arguments(VllmSettings(), served, 1)
    assert "--enable-mixed-moe-lora-format" not in _arguments(VllmSettings(), SERVED, 1)
    with pytest.raises(EngineError, match="on a GPU alone") as error:
        vllm_engine(VllmSettings(), replace(served, device="cpu"), tmp_path)
    assert "--lora-experts" in error.value.remedy


def an_interpreter(directory: Path, *, found: str) -> str:
    """Python without packages, and with the module `found`."""
    (directory / "modules" / found).mkdir(parents=True)
    (directory / "modules" / found / "__init__.py").touch()
    script = directory / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={directory}/modules exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_servers_that_cannot_be_started_here_are_told_before_any_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    without = an_interpreter(tmp_path / "without", found="another")
    with pytest.raises(EngineError, match=f"{without} cannot start vLLM: it has no module vllm") as error:
        check_startable(VllmSettings(python=without))
    assert "GAVEL_VLLM_PYTHON" in error.value.remedy
    with pytest.raises(EngineError, match="there is no interpreter /no/such/python"):
        check_startable(VllmSettings(python="/no/such/python"))
    (tmp_path / "broken").write_text("no program")
    (tmp_path / "broken").chmod(0o755)
    with pytest.raises(EngineError, match="broken cannot start vLLM"):
        check_startable(VllmSettings(python=str(tmp_path / "broken")))
    with_it = an_interpreter(tmp_path / "with", found="vllm")
    check_startable(VllmSettings(python=with_it, replicas=4))
    with pytest.raises(EngineError, match="5 replicas of vLLM need a GPU each, and there are 4"):
        check_startable(VllmSettings(python=with_it, replicas=5))


def test_servers_that_run_already_need_no_vllm_here() -> None:
    check_startable(VllmSettings(urls=("http://gpu-1:8000",), python="/no/such/python"))
