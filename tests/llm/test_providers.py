import subprocess
import sys

import pytest

from gavel.base.errors import GavelError
from gavel.llm.errors import LlmError, MissingKeyError, UnknownModelError
from gavel.llm.providers import check_model


@pytest.mark.parametrize("key", [None, "", " "])
def test_a_missing_key_is_named_with_what_to_do(key, monkeypatch):
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(MissingKeyError) as error:
        check_model("openai/o3")
    assert error.value.message == "the model openai/o3 needs OPENAI_API_KEY, which is not set."
    assert "stand-in" in error.value.remedy
    assert "--" not in error.value.remedy  # it may be called from code
    assert isinstance(error.value, GavelError)


@pytest.mark.parametrize(
    "model",
    ["stand-in", "gavel/constant", "ollama/qwen3", "ollama_chat/qwen3", "hosted_vllm/x", "bedrock/anthropic.claude-v2"],
)
def test_judges_that_need_no_key_are_not_asked_for_one(model):
    check_model(model)


def test_a_server_of_ones_own_needs_no_key(monkeypatch):
    check_model("openai/mine", {"api_base": "http://127.0.0.1:8000/v1"})
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    check_model("openai/mine")


@pytest.mark.parametrize("address", ["127.0.0.1:8000/v1", "ftp://desk/v1", "localhost"])
def test_an_address_without_its_scheme_is_refused_before_anything_is_asked(address, monkeypatch):
    with pytest.raises(LlmError, match="begins with http:// or https://") as error:
        check_model("hosted_vllm/mine", {"api_base": address})
    assert "api_base=http://" in error.value.remedy
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    with pytest.raises(LlmError, match="OPENAI_BASE_URL"):
        check_model("openai/mine", {"api_key": "x"})
    check_model("openai/mine", {"base_url": "https://desk/v1"})


@pytest.mark.slow
def test_importing_the_judge_loads_no_litellm():
    check = "import sys, gavel.judge.judge, gavel.judge.ruler, gavel.judge.offline; sys.exit('litellm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize(
    ("model", "params"),
    [("not-a-model", {}), ("openay/o3", {}), ("gpt-99", {"api_base": "http://127.0.0.1:1/v1"}), ("gavel/nobody", {})],
)
def test_a_model_that_nobody_serves_is_named_with_what_to_do(model, params):
    with pytest.raises(UnknownModelError, match=f"there is no model {model}") as error:
        check_model(model, params)
    assert "stand-in" in error.value.remedy


def test_a_model_whose_provider_is_given_apart_is_known():
    check_model("mine", {"custom_llm_provider": "openai", "api_key": "k"})
