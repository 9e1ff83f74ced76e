"""Lines of a batch's results, in the forms that vendors write."""

import json

import openai
import pytest

from gavel.llm.batch_result import BatchResult, not_answered, read_results

GOOD = {"custom_id": "a", "response": {"status_code": 200, "body": {"choices": []}}, "error": None}


def line(**changes: object) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def test_a_reply_is_no_failure():
    [result] = read_results([line(id="batch_req_1", more=[1])], {"a"})
    assert (result.failure, result.is_unreached, result.body) == (None, False, {"choices": []})


@pytest.mark.parametrize(
    "unreadable",
    [b"{not json", b"[]", b"null", b'"a"', b"{}", line(custom_id=7), line(custom_id="somebody else's"), b"\xff\xfe"],
)
def test_a_line_that_cannot_be_read_or_is_about_another_request_is_left_out(unreadable: bytes):
    assert [result.custom_id for result in read_results([unreadable, line()], {"a"})] == ["a"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"response": {"status_code": 500, "body": {"error": {"message": "broken"}}}}, "broken"),
        ({"response": {"status_code": 500, "body": {"error": "broken"}}}, "broken"),
        ({"response": {"status_code": 500, "body": {"object": "error", "message": "broken"}}}, "broken"),
        ({"response": {"status_code": 500, "body": "broken"}}, "broken"),
        ({"response": {"status_code": 500, "body": None}}, "null"),
        ({"response": {"status_code": 200, "body": None}}, "null"),
        ({"response": {"status_code": 200, "body": {"error": {"message": "high demand"}}}}, "high demand"),
        ({"response": None, "error": {"code": "batch_expired", "message": "too late"}}, "too late"),
        ({"response": None, "error": "too late"}, "too late"),
        ({"response": None}, "not answered"),
    ],
)
def test_whatever_is_no_reply_is_a_failure_with_its_words(changes: dict[str, object], words: str):
    [result] = read_results([line(**changes)], {"a"})
    assert words in str(result.failure)
    assert result.is_unreached == (changes["response"] is None)
    assert not result.may_be_mended


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.APIStatusError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (503, openai.InternalServerError),
    ],
)
def test_a_failure_is_the_error_that_the_request_would_raise_alone(status: int, kind: type[Exception]):
    [result] = read_results([line(response={"status_code": status, "body": {"error": {"message": "no"}}})], {"a"})
    assert isinstance(result.failure, kind)
    assert result.may_be_mended == (status in (401, 403, 404))


def test_a_request_that_no_batch_has_answered_is_unreached():
    assert isinstance(not_answered("a"), BatchResult)
    assert not_answered("a").is_unreached
