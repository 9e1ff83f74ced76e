import pytest

from gavel.cli.train import EngineChoiceError, engine_choice
from gavel.trainer.config import VllmSettings


@pytest.mark.parametrize("name", ["transformers", "vllm"])
def test_an_engine_is_chosen_by_its_name(name: str) -> None:
    assert engine_choice(name) == name


def test_an_address_is_a_vllm_server_that_runs_already() -> None:
    assert engine_choice("http://gpu-1:8000") == VllmSettings(url="http://gpu-1:8000")


def test_an_unknown_engine_is_refused_naming_the_known_ones() -> None:
    with pytest.raises(EngineChoiceError, match="'sglang'") as error:
        engine_choice("sglang")
    assert "transformers, vllm" in error.value.remedy
