import pytest

from gavel.llm.prompt_cut import context_options

PROMPT = [{"role": "user", "content": "word " * 10_000}]


def test_a_request_to_ollama_says_how_much_it_needs():
    assert context_options("ollama_chat/qwen3", {}, PROMPT, 128_000, None) == {"num_ctx": 24_576}
    assert context_options("ollama/qwen3", {}, PROMPT, 128_000, 16_000) == {"num_ctx": 49_152}


def test_it_asks_for_no_more_than_the_model_has():
    assert context_options("ollama_chat/qwen3", {}, PROMPT, 16_000, None) == {"num_ctx": 16_000}


@pytest.mark.parametrize(
    ("model", "params"), [("openai/qwen3", {}), ("hosted_vllm/qwen3", {}), ("ollama_chat/qwen3", {"num_ctx": 4_096})]
)
def test_others_and_a_length_of_the_users_own_stay(model, params):
    assert context_options(model, params, PROMPT, 128_000, None) == {}


def test_few_lengths_are_asked_for_since_ollama_loads_the_model_anew():
    prompts = ([{"role": "user", "content": "x" * length}] for length in range(0, 200_000, 1_000))
    assert len({context_options("ollama/m", {}, prompt, 128_000, None)["num_ctx"] for prompt in prompts}) <= 8
