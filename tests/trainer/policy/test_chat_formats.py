"""Which renderer a model gets, and what its own template shows: turns, tools and calls."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from renderers import ToolCallParseStatus
from transformers import AutoTokenizer

from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.policy import chat_format
from gavel.trainer.policy.chat_format import HermesCalls, TemplateRenderer, chat_renderer
from gavel.trainer.policy.loading import BaseModelError

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = TURNS + PROMPT
HERMES = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}" + PROMPT
)
OPAQUE_CALLS = HERMES.replace("<tool_call>", "CALL").replace("</tool_call>", "END")
ALTERNATING = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('only user and assistant') }}"
    "{% endif %}{% endfor %}" + CHATML
)


def tokenizer(template: str | None = None) -> Any:
    found: Any = AutoTokenizer.from_pretrained(EMBEDDED_PATH)
    found.chat_template = template
    return found


def renderer(template: str, **kwargs: Any) -> TemplateRenderer:
    return TemplateRenderer(tokenizer(template), kwargs)


USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("template", "read"),
    [
        (CHATML, set()),
        ("{% if enable_thinking is defined and enable_thinking is false %}no{% endif %}" + CHATML, {"enable_thinking"}),
        ("{{ effort | default('low') }}{{ bos_token }}{{ eos_token }}" + CHATML, {"effort"}),
        ("{% generation %}{{ style }}{% endgeneration %}{% set ns = namespace(a=1) %}{{ ns.a }}" + CHATML, {"style"}),
        ("{% macro show(x) %}{{ x }}{% endmacro %}{{ show(1) }}{% for i in range(2) %}{{ i }}{% endfor %}", set()),
    ],
)
def test_a_callers_arguments_are_what_the_template_reads_and_is_not_given(template: str, read: set[str]) -> None:
    assert chat_format.template_arguments(template) == read


roles = st.sampled_from(["user", "assistant", "system"])
texts = st.text("ab <>\n.é", max_size=8).map("é{}".format)  # a line break would be one token with the template's own
messages = st.lists(st.tuples(roles, texts), min_size=1, max_size=5)


@given(messages, st.booleans())
def test_a_rendering_is_the_templates_and_sampled_is_what_follows_the_generation_prompt(said, prompt):
    found, tokenizer = CHATML_RENDERER, CHATML_RENDERER._tokenizer
    conversation: list[Any] = [{"role": role, "content": text} for role, text in said]
    rendered = found.render(conversation, add_generation_prompt=prompt)
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in said)
    assert tokenizer.decode(rendered.token_ids) == text + "<|im_start|>assistant\n" * prompt
    assert rendered.token_ids == found.render_ids(conversation, add_generation_prompt=prompt)
    assert len(rendered.sampled_mask) == len(rendered.message_indices) == len(rendered.token_ids)
    for at, (role, content) in enumerate(said):
        places = [n for n, index in enumerate(rendered.message_indices) if index == at and rendered.sampled_mask[n]]
        sampled = tokenizer.decode([rendered.token_ids[n] for n in places])
        assert sampled == (f"{content}<|im_end|>" if role == "assistant" and at else "")
    opening = [n for n, index in enumerate(rendered.message_indices) if index == -1]
    assert tokenizer.decode([rendered.token_ids[n] for n in opening]) == "<|im_start|>assistant\n" * prompt


RESULT = {"role": "tool", "tool_call_id": "c1", "content": "17"}
PYTHON_CALLS = OPAQUE_CALLS.replace(
    '{"name": {{ c.function.name | tojson }}, "arguments": ', "{{ c.function.name }}(**"
)
NO_RESULTS = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}"
    + HERMES
)
STRICT = (
    "{% for m in messages %}{% if m.role != ['user', 'assistant'][loop.index0 % 2] %}"
    "{{ raise_exception('user and assistant take turns') }}{% endif %}{% endfor %}" + CHATML
)


def assert_reads_calls(found: TemplateRenderer) -> None:
    tokenizer: Any = found._tokenizer
    text = '<tool_call>\n{"name": "f", "arguments": {"a": [1, "é"]}}\n</tool_call><|im_end|>'
    opening = found.render_ids([USER], tools=chat_format.TOOLS, add_generation_prompt=True)
    turn = tokenizer.encode(text, add_special_tokens=False)
    (call,) = found.parse_response(turn, prompt_ids=opening).tool_calls
    assert (call.name, call.arguments, call.status) == ("f", {"a": [1, "é"]}, ToolCallParseStatus.OK)


@pytest.mark.parametrize("template", [CHATML, OPAQUE_CALLS, ALTERNATING, PYTHON_CALLS, STRICT, NO_RESULTS])
def test_tools_that_the_template_does_not_show_or_nobody_can_read_are_told_in_words(template, caplog):
    found = renderer(template)
    conversation: Any = [*chat_format.CALLED, RESULT, RESULT]
    text = found._tokenizer.decode(found.render_ids(conversation, tools=chat_format.TOOLS, add_generation_prompt=True))
    assert text.count('"name": "look_up", "description"') == 1
    assert text.count('<tool_call>\n{"name": "look_up", "arguments": {"word": "seventeen"}}\n</tool_call>') == 1
    assert text.count("<tool_response>\n17\n</tool_response>") == 2
    found.render_ids([USER], tools=chat_format.TOOLS, add_generation_prompt=True)
    assert caplog.text.count("are described in the first turn") == 1
    assert_reads_calls(found)
    without = found._tokenizer.decode(found.render_ids(conversation))
    assert (without.count("seventeen"), without.count("17\n</tool_response>")) == (1, 2)
    plain = tokenizer(template).apply_chat_template([USER], return_dict=False, add_generation_prompt=True)
    assert found.render_ids([USER], tools=[], add_generation_prompt=True) == list(plain)


THINKING = HERMES.replace(
    PROMPT,
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
)


@pytest.mark.parametrize("template", [THINKING, THINKING.replace("<tool_call>", "<tool_call> ")])
@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": False}])
def test_calls_are_read_whether_or_not_thinking_is_switched_off(template: str, kwargs: dict[str, bool]) -> None:
    found = renderer(template, **kwargs)
    assert_reads_calls(found)
    text = found._tokenizer.decode(found.render_ids([USER], tools=chat_format.TOOLS, add_generation_prompt=True))
    assert "You can call these tools" not in text, "the template's own form"
    assert text.endswith("</think>\n\n" if kwargs.get("enable_thinking") is False else "assistant\n")


CHATML_RENDERER = renderer(CHATML)
LIKE_QWEN3 = (
    "{%- if tools %}{{ raise_exception('no tools') }}{% endif %}"
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and loop.last %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{{- m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.mark.parametrize(
    "template",
    [
        LIKE_QWEN3.replace("<|im_start|>assistant\\n", "<|im_start|>assistant\\nSure: "),
        LIKE_QWEN3.replace("{{ raise_exception('no tools') }}", "{{ '<|im_start|>system\\ntools<|im_end|>\\n' }}"),
    ],
)
def test_a_fine_tune_with_a_format_of_its_own_keeps_it_and_that_is_told(template, caplog):
    alike = chat_renderer(tokenizer(LIKE_QWEN3), "qwen3", None, "mine", {})
    assert (type(alike).__name__, caplog.text) == ("Qwen3Renderer", "")
    found = chat_renderer(tokenizer(template), "qwen3", None, "mine", {})
    assert "mine does not use the chat renderer qwen3 of its family" in caplog.text
    assert type(found).__name__ == "TemplateRenderer"
    expected = tokenizer(template).apply_chat_template([USER], add_generation_prompt=True, return_dict=False)
    assert found.render_ids([USER], add_generation_prompt=True) == list(expected)


def test_arguments_of_the_template_reach_an_exact_renderer_too() -> None:
    def prompt(**kwargs: Any) -> Any:
        found = chat_renderer(tokenizer(), "qwen3", "qwen3", "mine", kwargs)
        return tokenizer().decode(found.render_ids([USER], add_generation_prompt=True))

    assert prompt(enable_thinking=False) == prompt(enable_thinking=True) + "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("name", "kwargs", "template", "problem"),
    [
        ("no-such-format", {}, CHATML, "no-such-format"),
        ("qwen3", {"enable_thought": False}, CHATML, "does not suit"),
        ("template", {}, None, "has no chat template"),
        (None, {}, None, "has no chat template"),
        (None, {}, "{{ raise_exception('never') }}", "cannot be used: .*never"),
        (None, {}, "nothing of it", "cannot be used"),
        (None, {}, "{% for m in %}", "cannot be used"),
        (None, {"enable_thought": False}, CHATML, "does not read enable_thought"),
        ("template", {"preserve_all_thinking": True}, CHATML + "{{ preserve_all_thinking }}", "thinking_retention"),
    ],
)
def test_a_format_that_cannot_be_used_is_refused_with_a_remedy(name, kwargs, template, problem):
    with pytest.raises(BaseModelError, match=problem) as error:
        chat_renderer(tokenizer(template), "llama", name, "mine", kwargs)
    assert "renderer" in error.value.remedy


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('<tool_call>{"name": "f"', ToolCallParseStatus.UNCLOSED_BLOCK),
        ("<tool_call>{name: f}</tool_call>", ToolCallParseStatus.INVALID_JSON),
        ('<tool_call>{"name": 3}</tool_call>', ToolCallParseStatus.MISSING_NAME),
        ("<tool_call>[]</tool_call>", ToolCallParseStatus.MISSING_NAME),
    ],
)
def test_a_broken_call_is_told_as_broken(text: str, status: ToolCallParseStatus) -> None:
    found = tokenizer()
    _, (call,) = HermesCalls(found).extract(found.encode(text, add_special_tokens=False))
    assert call.status is status
