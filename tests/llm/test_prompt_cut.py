"""How much of a prompt a server reads: its context, what its refusals teach, and prompts that it cuts."""

import pytest

from gavel.llm.prompt_cut import PromptCutError, check_not_cut, context_options, expected_tokens
from gavel.llm.types import Reply

PROMPT = [{"role": "user", "content": "word " * 10_000}]


@pytest.mark.parametrize(
    ("model", "params"), [("openai/qwen3", {}), ("hosted_vllm/qwen3", {}), ("ollama_chat/qwen3", {"num_ctx": 4_096})]
)
def test_others_and_a_length_of_the_users_own_stay(model, params):
    assert context_options(model, params, PROMPT, 128_000, None) == {}


ENGLISH = "The agent looked the order up, and it was 12 days old; so it refunded 48.20 USD.\n" * 500
CHINESE = "代理查询了订单，发现订单只有十二天，因此退款了四十八美元。\n" * 500
CODE = "def refund(order_id: str, amount: float) -> bool:\n    return api.post(f'/orders/{order_id}')\n" * 500
TURKISH = "Temsilci siparişi kontrol etti ve on iki günlük olduğunu gördü, bu yüzden parayı iade etti.\n" * 500
TOKENS = {ENGLISH: 12_000, CHINESE: 8_500, CODE: 12_500, TURKISH: 12_000, "=" * 50_000: 781}
"""Of o200k_base, which holds more of most languages than cl100k_base."""
WRITTEN = pytest.mark.parametrize("text", [ENGLISH, CHINESE, CODE], ids=["English", "Chinese", "code"])


def cut(counted: int, text: str, *, own_server: bool = False, cached: int = 0, limits: tuple[int, ...] = ()) -> bool:
    reply = Reply("", counted, cached_prompt_tokens=cached)
    try:
        check_not_cut("m", reply, [{"role": "user", "content": text}], own_server=own_server, limits=limits)
    except PromptCutError as error:
        return error.reply is reply
    return False


@pytest.mark.parametrize(("text", "tokens"), TOKENS.items(), ids=["English", "Chinese", "code", "Turkish", "line"])
def test_what_another_tokenizer_counts_is_no_cut(text, tokens):
    assert not cut(tokens, text)
    assert not cut(int(0.8 * tokens), text), "a tokenizer that is more compact still"
    assert cut(expected_tokens(text) // 2, text) or text[0] == "="


@WRITTEN
def test_a_usual_context_is_a_cut_on_a_server_of_ones_own_and_chance_elsewhere(text):
    text = text[: int(len(text) * 4096 * 1.1 / expected_tokens(text))]
    assert cut(4096, text, own_server=True)
    assert cut(4095, text, own_server=True)
    assert not cut(4096, text)
    assert not cut(4094, text, own_server=True)
    assert cut(4094, text, own_server=True, limits=(4094,))


def test_tokens_from_a_cache_count_as_read():
    assert not cut(1_000, ENGLISH, cached=9_000)
    assert not cut(30, ENGLISH)
