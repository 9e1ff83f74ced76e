"""A name that is no base model is told from one, with what to name instead."""

import json
from pathlib import Path

import pytest

from gavel.trainer.policy.loading import BaseModelError
from gavel.trainer.policy.policy import load_config


def refused(name: str) -> BaseModelError:
    with pytest.raises(BaseModelError) as error:
        load_config(name)
    assert error.value.remedy
    return error.value


def test_gguf_files_name_what_they_were_made_of(tmp_path: Path) -> None:
    file = tmp_path / "model-q4.gguf"
    file.write_bytes(b"GGUF")
    for name in (file, tmp_path):
        assert "GGUF" in refused(str(name)).message


def test_an_adapter_names_its_base(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen3-8B"}))
    error = refused(str(tmp_path))
    assert "adapter" in error.message
    assert "Qwen/Qwen3-8B" in error.remedy


def test_a_directory_without_a_config_and_a_file_of_a_model_are_told(tmp_path: Path) -> None:
    assert "config.json" in refused(str(tmp_path)).message
    (tmp_path / "config.json").write_text("{}")
    assert str(tmp_path) in refused(str(tmp_path / "config.json")).remedy


@pytest.mark.parametrize("scheme", ["https://huggingface.co", "hf:/"])
def test_an_address_gives_the_name_in_it(scheme: str) -> None:
    assert refused(f"{scheme}/Qwen/Qwen3-8B").remedy.endswith(" Qwen/Qwen3-8B")


def test_a_built_in_model_that_is_misspelt_is_guessed() -> None:
    assert "embedded/returns-desk" in refused("embedded/return-desk").remedy


def test_code_that_a_model_brings_is_not_run_and_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object) -> str:
        raise AssertionError("it asks at the terminal")

    monkeypatch.setattr("builtins.input", ask)
    config = {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "configuration_own.py").write_text("raise AssertionError('it was run')\n")
    assert "code of its own" in refused(str(tmp_path)).message


def test_an_architecture_that_transformers_lacks_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen99"}))
    error = refused(str(tmp_path))
    assert "qwen99" in error.message
    assert "transformers" in error.remedy
