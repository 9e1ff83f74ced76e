"""A model's own chat template: what ends a turn, which calls are read, which tokens a policy would have sampled."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from renderers import ToolCallParseStatus
from transformers import AutoTokenizer

from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.policy.template_renderer import CALLED, TOOLS, ChatFormatError, TemplateRenderer, template_arguments

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
PLAIN_TEXT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
ALTERNATING = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('only user and assistant') }}"
    "{% endif %}{% endfor %}" + CHATML
)
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content if loop.last or m.role == 'user' else '…' }}<|im_end|>\n{% endfor %}" + PROMPT
)


def renderer(template: str, **kwargs: Any) -> TemplateRenderer:
    tokenizer: Any = AutoTokenizer.from_pretrained(EMBEDDED_PATH)
    tokenizer.chat_template = template
    return TemplateRenderer(tokenizer, kwargs)


def ids_of(found: TemplateRenderer, text: str) -> list[int]:
    tokenizer: Any = found._tokenizer
    return tokenizer.encode(text, add_special_tokens=False)


USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("template", "read"),
    [
        (CHATML, set()),
        (HERMES, set()),
        ("{% if enable_thinking is defined and enable_thinking is false %}no{% endif %}" + CHATML, {"enable_thinking"}),
        ("{% set deep = deep if deep is defined else true %}{{ deep }}" + CHATML, {"deep"}),
        ("{% if not date_string is defined %}{% set date_string = '1' %}{% endif %}" + CHATML, {"date_string"}),
        ("{{ effort | default('low') }}{{ bos_token }}{{ eos_token }}" + CHATML, {"effort"}),
        ("{% generation %}{{ style }}{% endgeneration %}{% set ns = namespace(a=1) %}{{ ns.a }}" + CHATML, {"style"}),
        ("{% macro show(x) %}{{ x }}{% endmacro %}{{ show(1) }}{% for i in range(2) %}{{ i }}{% endfor %}", set()),
    ],
)
def test_a_callers_arguments_are_what_the_template_reads_and_is_not_given(template: str, read: set[str]) -> None:
    assert template_arguments(template) == read


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "tokenize", "name", "content", "role"])
def test_what_is_not_a_callers_is_refused_whatever_the_template_says(name: str) -> None:
    with pytest.raises(ChatFormatError, match=f"does not read {name}, but no argument"):
        renderer(HERMES, **{name: "x"})


@pytest.mark.parametrize("template", [CHATML, HERMES, ALTERNATING, FORGETFUL])
def test_what_the_template_puts_behind_a_turn_ends_it(template: str) -> None:
    found = renderer(template)
    assert found.get_stop_token_ids()[0] == ids_of(found, "<|im_end|>")[0]


def test_without_such_a_token_the_tokenizers_own_and_the_models_end_a_turn() -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(EMBEDDED_PATH)
    tokenizer.chat_template = PLAIN_TEXT
    assert TemplateRenderer(tokenizer, {}, [7, 9]).get_stop_token_ids() == [tokenizer.eos_token_id, 7, 9]


roles = st.sampled_from(["user", "assistant", "system"])
texts = st.text("ab <>\n.é", max_size=8).map("é{}".format)  # a line break would be one token with the template's own
messages = st.lists(st.tuples(roles, texts), min_size=1, max_size=5)


@given(messages, st.booleans())
def test_a_rendering_is_the_templates_and_sampled_is_what_follows_the_generation_prompt(
    said: list[tuple[str, str]], prompt: bool
) -> None:
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


def test_a_turn_that_the_template_rewrites_has_no_sampled_tokens() -> None:
    found = renderer(FORGETFUL)
    conversation: Any = [USER, {"role": "assistant", "content": "one"}, USER, {"role": "assistant", "content": "two"}]
    rendered = found.render(conversation)
    sampled = [token for token, own in zip(rendered.token_ids, rendered.sampled_mask, strict=True) if own]
    assert found._tokenizer.decode(sampled) == "two<|im_end|>"


@pytest.mark.parametrize("template", [HERMES, HERMES.replace("<tool_call>", "<tool_call> "), CHATML])
def test_a_call_that_the_template_writes_is_read_back(template: str) -> None:
    found = renderer(template)
    opening = found.render_ids(CALLED[:1], tools=TOOLS, add_generation_prompt=True)
    turn = ids_of(found, '<tool_call>\n{"name": "f", "arguments": {"a": [1, "é"]}}\n</tool_call><|im_end|>')
    (call,) = found.parse_response(turn, prompt_ids=opening).tool_calls
    assert (call.name, call.arguments, call.status) == ("f", {"a": [1, "é"]}, ToolCallParseStatus.OK)


def test_chatml_that_knows_no_tools_shows_them_and_renders_all_else_as_it_did() -> None:
    found = renderer(CHATML)
    tokenizer: Any = AutoTokenizer.from_pretrained(EMBEDDED_PATH)
    tokenizer.chat_template = CHATML
    assert found.render_ids([USER]) == list(tokenizer.apply_chat_template([USER], return_dict=False))
    result = {"role": "tool", "tool_call_id": "c1", "content": "17"}
    system: Any = {"role": "system", "content": "Be short."}
    ids = found.render_ids([system, *CALLED, result], tools=TOOLS, add_generation_prompt=True)
    text = tokenizer.decode(ids)
    assert text.startswith("<|im_start|>system\nBe short.\n\nYou can call these tools")
    assert text.count("Be short.") == 1
    assert '"name": "look_up"' in text
    assert '<tool_call>\n{"name": "look_up", "arguments": {"word": "seventeen"}}\n</tool_call><|im_end|>' in text
    assert text.endswith("<|im_start|>user\n<tool_response>\n17\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


REFUSING = "{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + CHATML


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


@pytest.mark.parametrize(
    "template", [PLAIN_TEXT, OPAQUE_CALLS, REFUSING, ALTERNATING, PYTHON_CALLS, STRICT, NO_RESULTS]
)
def test_tools_that_the_template_does_not_show_or_nobody_can_read_are_told_in_words(
    template: str, caplog: pytest.LogCaptureFixture
) -> None:
    found, tokenizer = renderer(template), AutoTokenizer.from_pretrained(EMBEDDED_PATH)
    conversation: Any = [*CALLED, RESULT, RESULT]
    text = found._tokenizer.decode(found.render_ids(conversation, tools=TOOLS, add_generation_prompt=True))
    assert text.count('"name": "look_up", "description"') == 1
    assert text.count('<tool_call>\n{"name": "look_up", "arguments": {"word": "seventeen"}}\n</tool_call>') == 1
    assert text.count("<tool_response>\n17\n</tool_response>") == 2
    found.render_ids([USER], tools=TOOLS, add_generation_prompt=True)
    assert caplog.text.count("are described in the first turn") == 1
    turn = ids_of(found, '<tool_call>\n{"name": "f", "arguments": {"a": [1, "é"]}}\n</tool_call>')
    opening = found.render_ids([USER], tools=TOOLS, add_generation_prompt=True)
    (call,) = found.parse_response([*turn, found.get_stop_token_ids()[0]], prompt_ids=opening).tool_calls
    assert (call.name, call.arguments, call.status) == ("f", {"a": [1, "é"]}, ToolCallParseStatus.OK)
    without = found._tokenizer.decode(found.render_ids(conversation))
    assert (without.count("seventeen"), without.count("17\n</tool_response>")) == (1, 2)
    tokenizer.chat_template = template
    plain = tokenizer.apply_chat_template([USER], return_dict=False, add_generation_prompt=True)
    assert found.render_ids([USER], tools=[], add_generation_prompt=True) == list(plain)


THINKING = HERMES.replace(
    PROMPT,
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
)


@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": True}, {"enable_thinking": False}])
def test_calls_are_read_whether_or_not_thinking_is_switched_off(kwargs: dict[str, bool]) -> None:
    found = renderer(THINKING, **kwargs)
    text = found._tokenizer.decode(found.render_ids([USER], tools=TOOLS, add_generation_prompt=True))
    assert "You can call these tools" not in text, "the template's own form"
    assert text.endswith("</think>\n\n" if kwargs.get("enable_thinking") is False else "assistant\n")


def test_a_conversation_that_the_template_refuses_says_why() -> None:
    with pytest.raises(ChatFormatError, match="only user and assistant"):
        renderer(ALTERNATING).render_ids([{"role": "system", "content": "Be brief."}, USER])


@pytest.mark.parametrize("template", ["{{ raise_exception('never') }}", "nothing of it", "{% for m in %}"])
def test_a_template_that_shows_nothing_is_refused(template: str) -> None:
    with pytest.raises(ChatFormatError):
        renderer(template)


def test_arguments_reach_the_template() -> None:
    template = CHATML + "{% if not thinking %}<think>\n\n</think>{% endif %}"
    on, off = (
        renderer(template, thinking=value).render_ids([USER], add_generation_prompt=True) for value in (True, False)
    )
    assert off == on + ids_of(renderer(template, thinking=True), "<think>\n\n</think>")


CHATML_RENDERER = renderer(CHATML)
