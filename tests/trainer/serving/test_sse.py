"""The body of a request is a JSON object, or the answer says what is wrong with it."""

from typing import Any

import pytest
from starlette.requests import Request

from gavel.trainer.serving.errors import ANSWERED, CLIENT_GONE, BadRequest, error_answer
from gavel.trainer.serving.sse import object_of


def with_body(body: bytes) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def test_an_object_is_given() -> None:
    assert await object_of(with_body(b'{"model": "m"}')) == {"model": "m"}


async def test_a_client_that_goes_away_within_its_body_is_no_fault_of_the_endpoint() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ANSWERED) as caught:
        await object_of(Request({"type": "http", "method": "POST", "headers": []}, receive))
    assert error_answer(caught.value)[0] == CLIENT_GONE


async def test_a_compressed_body_is_refused_by_the_name_of_its_encoding() -> None:
    request = with_body(b"\x1f\x8b")
    request.scope["headers"] = [(b"content-encoding", b"gzip")]
    with pytest.raises(BadRequest, match="'gzip'"):
        await object_of(request)


async def test_a_body_of_any_size_is_read_up_to_a_limit() -> None:
    piece, given = b" " * (1 << 20), 0

    async def receive() -> dict[str, Any]:
        nonlocal given
        given += 1
        return {"type": "http.request", "body": piece, "more_body": True}

    with pytest.raises(BadRequest, match="more than 32 MiB") as caught:
        await object_of(Request({"type": "http", "method": "POST", "headers": []}, receive))
    assert (error_answer(caught.value)[0], given) == (413, 33)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{oops", "the body is no JSON"),
        (b"", "the body is no JSON"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "the body is no JSON"),
        (b'{"model": "\xff"}', "the body is not in UTF-8"),
        (b"[]", "the body is no JSON object"),
        (b"null", "the body is no JSON object"),
        (b'"model"', "the body is no JSON object"),
        (b"[" * 100_000, "the request is nested too deeply"),
        (b'{"tools": ' * 100_000, "the request is nested too deeply"),
    ],
)
async def test_any_other_body_is_a_400(body: bytes, reason: str) -> None:
    with pytest.raises(ANSWERED) as caught:
        await object_of(with_body(body))
    status, answer = error_answer(caught.value)
    assert status == 400
    assert reason in answer["error"]["message"]
