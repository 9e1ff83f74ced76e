import httpx
import openai
import pytest

from gavel.llm.failures import filtered, is_refusal, is_refusal_text
from gavel.llm.response import _refusal_in as refusal_in

RESPONSE = httpx.Response(400, request=httpx.Request("POST", "http://x"))


def error(status: int, message: str) -> openai.APIStatusError:
    kind = openai.BadRequestError if status == 400 else openai.PermissionDeniedError
    return kind(message, response=httpx.Response(status, request=RESPONSE.request), body=None)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "The response was filtered due to the prompt triggering Azure OpenAI's content management policy."),
        (400, "Invalid prompt: your prompt was flagged as potentially violating our usage policy."),
        (400, "Your request was rejected as a result of our safety system."),
        (400, "Output blocked by content filtering policy"),
        (403, 'Your chosen model requires moderation and your input was flagged for "violence"'),
    ],
)
def test_errors_of_content_filters_are_refusals(status: int, message: str):
    assert is_refusal(error(status, message))


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "Invalid schema for response_format 'scores'"),
        (403, "You have insufficient permissions for this operation."),
        (400, "temperature is not supported with this model"),
    ],
)
def test_other_errors_are_no_refusals(status: int, message: str):
    assert not is_refusal(error(status, message))
    assert not is_refusal(RuntimeError("content filter"))


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I’m sorry, I can’t assist with this request.",
        "Sorry, I am unable to evaluate this content.",
        "I cannot comply with this request.",
        "I apologize, but I won't be able to help with that.",
    ],
)
def test_a_refusal_in_plain_words_is_known(text: str):
    assert is_refusal_text(text)


@pytest.mark.parametrize("text", ["", "{}", "Trajectory 1 is best.", "Sorry for the delay. Scores: 1, 2"])
def test_other_unusable_replies_are_no_refusals(text: str):
    assert not is_refusal_text(text)


def test_a_refusal_is_read_where_openai_and_litellm_put_it():
    assert refusal_in({"content": None, "refusal": "no"}) == "no"
    assert refusal_in({"content": None, "provider_specific_fields": {"refusal": "no"}}) == "no"
    assert refusal_in({"content": "yes", "provider_specific_fields": {"refusal": None}}) == ""


def test_the_words_of_a_refusal_are_quoted_in_one_line():
    assert filtered("m", "I\ncannot.") == "m said: I cannot."
    assert filtered("m", "") == "m gave an empty reply, stopped by a content filter"
