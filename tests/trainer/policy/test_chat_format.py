"""Which renderer a base model gets, and that a family's format is never taken for a fine-tune's own."""

from typing import Any

import pytest
from transformers import AutoTokenizer

from gavel.trainer.embedded import EMBEDDED_PATH, EMBEDDED_POLICY
from gavel.trainer.policy.chat_format import chat_renderer
from gavel.trainer.policy.loading import BaseModelError
from tests.trainer.policy.test_template_renderer import CHATML, USER


def tokenizer(template: str | None = None) -> Any:
    found: Any = AutoTokenizer.from_pretrained(EMBEDDED_PATH)
    found.chat_template = template
    return found


def name_of(template: str | None, model_type: str = "qwen3", name: str | None = None, **kwargs: Any) -> str:
    return type(chat_renderer(tokenizer(template), model_type, name, "mine", kwargs)).__name__


LIKE_QWEN3 = (
    "{%- if tools %}{{ raise_exception('no tools') }}{% endif %}"
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and loop.last %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{{- m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_a_familys_format_is_used_where_the_template_renders_alike() -> None:
    assert name_of(LIKE_QWEN3) == "Qwen3Renderer"


@pytest.mark.parametrize(
    "template",
    [
        LIKE_QWEN3.replace("<|im_start|>assistant\\n", "<|im_start|>assistant\\nSure: "),
        LIKE_QWEN3.replace("{%- for m", "{{- '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{%- for m"),
        LIKE_QWEN3.replace("{{ raise_exception('no tools') }}", "{{ '<|im_start|>system\\ntools<|im_end|>\\n' }}"),
    ],
)
def test_a_fine_tune_with_a_format_of_its_own_keeps_it_and_that_is_told(
    template: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = chat_renderer(tokenizer(template), "qwen3", None, "mine", {})
    assert "mine does not use the chat renderer qwen3 of its family" in caplog.text
    assert type(found).__name__ == "TemplateRenderer"
    expected = tokenizer(template).apply_chat_template([USER], add_generation_prompt=True, return_dict=False)
    assert found.render_ids([USER], add_generation_prompt=True) == list(expected)  # type: ignore[list-item]


@pytest.mark.parametrize("model_type", ["llama", "mistral", "no_such_family"])
def test_a_model_without_an_exact_renderer_uses_its_own_template(model_type: str) -> None:
    assert name_of(CHATML, model_type) == "TemplateRenderer"


def test_a_template_that_renders_nothing_is_no_proof_of_the_familys_format() -> None:
    with pytest.raises(BaseModelError, match="cannot be used"):
        name_of("{{ raise_exception('never') }}", "qwen3")


def test_a_published_models_renderer_refuses_arguments_that_are_not_its_own() -> None:
    published = tokenizer(CHATML)
    published.name_or_path = "Qwen/Qwen3-8B"
    assert type(chat_renderer(published, "qwen3", None, "Qwen/Qwen3-8B", {})).__name__ == "Qwen3Renderer"
    with pytest.raises(BaseModelError, match="enable_thought"):
        chat_renderer(published, "qwen3", None, "Qwen/Qwen3-8B", {"enable_thought": False})


def test_a_tokenizer_that_the_familys_renderer_does_not_take_keeps_its_template(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert name_of(CHATML, "gpt_oss") == "TemplateRenderer"
    assert "renderer gpt-oss of its family" in caplog.text


def test_a_name_wins_over_the_template_and_template_over_the_family() -> None:
    assert name_of(CHATML, "llama", "qwen3") == "Qwen3Renderer"
    assert name_of(LIKE_QWEN3, "qwen3", "template") == "TemplateRenderer"
    assert type(chat_renderer(tokenizer(), "llama", None, EMBEDDED_POLICY, {})).__name__ == "Qwen3Renderer"


def test_arguments_of_the_template_reach_an_exact_renderer_too() -> None:
    def prompt(**kwargs: Any) -> Any:
        found = chat_renderer(tokenizer(), "qwen3", "qwen3", "mine", kwargs)
        return tokenizer().decode(found.render_ids([USER], add_generation_prompt=True))  # type: ignore[list-item]

    assert prompt(enable_thinking=False) == prompt(enable_thinking=True) + "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("name", "kwargs", "template", "problem"),
    [
        ("no-such-format", {}, CHATML, "no-such-format"),
        ("qwen3", {"enable_thought": False}, CHATML, "does not suit"),
        ("template", {}, None, "has no chat template"),
        (None, {}, None, "has no chat template"),
        (None, {}, "{{ raise_exception('never') }}", "cannot be used: .*never"),
        (None, {"enable_thought": False}, CHATML, "does not read enable_thought"),
        ("template", {"preserve_all_thinking": True}, CHATML + "{{ preserve_all_thinking }}", "thinking_retention"),
    ],
)
def test_a_format_that_cannot_be_used_is_refused_with_a_remedy(
    name: str | None, kwargs: dict[str, Any], template: str | None, problem: str
) -> None:
    with pytest.raises(BaseModelError, match=problem) as error:
        chat_renderer(tokenizer(template), "llama", name, "mine", kwargs)
    assert "renderer" in error.value.remedy


FOREIGN = ["auto", "default", "deepseek-r1", "gemma4", "glm-4.5", "hy3", "kimi-k2", "llama-3", "minimax-m2", "qwen3-vl"]


@pytest.mark.parametrize("name", [*FOREIGN, "qwen3.5"])
def test_a_renderer_that_does_not_fit_the_tokenizer_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(BaseModelError, match="does not suit 'mine': ") as error:
        chat_renderer(tokenizer(None), "llama", name, "mine", {})
    assert "renderer='template'" in error.value.remedy


@pytest.mark.parametrize("model_type", ["gemma4", "qwen3_5", "glm_4.5", "kimi_k2", "minimax_m2"])
def test_the_renderer_of_a_family_that_does_not_fit_the_tokenizer_gives_way_to_its_template(model_type: str) -> None:
    assert name_of(CHATML, model_type) == "TemplateRenderer"
