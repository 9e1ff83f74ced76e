"""What servers say when a prompt is too long, in the words of each (shortened)."""

import httpx
import openai
import pytest

from gavel.llm.failures import context_limit, is_too_long, may_be_the_format, may_pass, pause

TOO_LONG = [
    ("This model's maximum context length is 8192 tokens. However, your messages resulted in 10000 tokens.", 8192),
    ("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300012 tokens.", 272000),
    (
        "'max_tokens' is too large: 5000. This model's maximum context length is 4096 tokens and your request has "
        "10 input tokens (5000 > 4096 - 10).",
        4096,
    ),
    ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", 4096),
    ("prompt is too long: 210000 tokens > 200000 maximum", 200000),
    ("input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000, decrease them", 200000),
    ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1048576),
    ("Input is too long for requested model.", None),
    ("Prompt contains 40000 tokens, too large for model with 32768 maximum context length", 32768),
    ("the request exceeds the available context size (4096 tokens), try increasing it", 4096),
    ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens", 4096),
    ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", 4096),
    ("Requested token count exceeds the model's maximum context length of 131,072 tokens.", 131072),
    ("too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000", 4081),
    ("This model's maximum prompt length is 131072 but the request contains 200000 tokens.", 131072),
]


def refused(words: str, status: int = 400) -> openai.APIStatusError:
    kind = {400: openai.BadRequestError, 429: openai.RateLimitError}.get(status, openai.InternalServerError)
    response = httpx.Response(status, request=httpx.Request("POST", "http://judge.invalid/v1/chat/completions"))
    return kind(words, response=response, body=None)


@pytest.mark.parametrize(("words", "limit"), TOO_LONG)
def test_a_prompt_that_is_too_long_is_known_in_any_words(words, limit):
    assert context_limit(words) == limit
    error = refused(words)
    assert isinstance(error, openai.BadRequestError)
    assert is_too_long(error)
    assert not may_be_the_format(error)
    assert not may_pass(refused(words, 500))


@pytest.mark.parametrize(
    "words",
    [
        "Invalid value for 'response_format': json_schema is not supported.",
        "max_tokens must be at least 1, got 0",
        "Invalid 'user': string too long. Expected a string with maximum length 64, but got 80 instead.",
        "The model `judge-400` does not exist",
    ],
)
def test_another_refusal_is_not_taken_for_a_prompt_that_is_too_long(words):
    assert not is_too_long(refused(words))


def test_a_limit_on_tokens_in_a_minute_passes():
    error = refused("Request too large: it exceeds the context limit of 9000 tokens in this minute", 429)
    assert may_pass(error)
    assert not is_too_long(error)


def pauses(error: openai.APIStatusError, attempt: int) -> float:
    """The mean pause after so many attempts that all failed like this."""
    return sum(pause(error, attempt) for _ in range(300)) / 300


@pytest.mark.parametrize("attempt", [1, 3])
def test_a_request_that_failed_is_sent_again_sooner_than_one_that_was_too_much(attempt):
    broken, busy, full = (pauses(refused("…", status), attempt) for status in (500, 429, 503))
    assert broken < busy / 2
    assert broken < full / 2


@pytest.mark.parametrize("status", [500, 429])
def test_pauses_grow_to_half_a_minute_at_most(status):
    means = [pauses(refused("…", status), attempt) for attempt in (1, 3, 5, 20)]
    assert means == sorted(means)
    assert means[-1] <= 30
