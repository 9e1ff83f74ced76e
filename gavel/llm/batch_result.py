"""One line of a batch's results: a reply, or why there is none, as the error that the same request would raise alone.

{"custom_id": "…", "response": {"status_code": 200, "body": {…}}, "error": null}
{"custom_id": "…", "response": {"status_code": 400, "body": {"error": {"message": "…"}}}, "error": null}
{"custom_id": "…", "response": null, "error": {"code": "batch_expired", "message": "…"}}
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import openai
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from gavel.llm.failures import is_permanent
from gavel.llm.openai_http import openai_httpx


class _Response(BaseModel):
    status_code: int
    body: JsonValue = None


class UnansweredError(openai.OpenAIError):
    """A batch ended without an answer to one of its requests."""


class BatchResult(BaseModel):
    """The outcome of one request."""

    model_config = ConfigDict(extra="ignore")

    custom_id: str
    response: _Response | None = None
    error: JsonValue = None

    @property
    def body(self) -> dict[str, Any]:
        """What the model's server answered."""
        body = self.response.body if self.response else None
        return body if isinstance(body, dict) else {}

    @property
    def is_unreached(self) -> bool:
        """Whether the batch ended before the request was sent to the model."""
        return self.response is None

    @property
    def failure(self) -> openai.OpenAIError | None:
        """Why there is no reply; None = there is one."""
        if self.response is None:
            return UnansweredError(_words(self.error) or "it was not answered")
        status = self.response.status_code
        if status == 200 and "choices" in self.body:
            return None
        words = _words(self.body.get("error")) or json.dumps(self.response.body)[:500]
        if status == 200:
            status = 500  # an error that came as a reply
        kind = _KINDS.get(status, openai.InternalServerError if status >= 500 else openai.APIStatusError)
        request = openai_httpx.Request("POST", "https://batch/v1/chat/completions")
        return kind(words, response=openai_httpx.Response(status, request=request), body=self.body)

    @property
    def may_be_mended(self) -> bool:
        """Whether a person may have mended the cause since: a wrong key, an empty account."""
        return self.failure is not None and is_permanent(self.failure)


_KINDS: dict[int, type[openai.APIStatusError]] = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    404: openai.NotFoundError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
}


def read_results(lines: Iterable[bytes], keys: set[str]) -> Iterator[BatchResult]:
    """The results for requests with these keys; lines that cannot be read, or are about others, are left out."""
    for line in lines:
        try:
            result = BatchResult.model_validate_json(line)
        except ValidationError:
            continue
        if result.custom_id in keys:
            yield result


def not_answered(key: str) -> BatchResult:
    """The result of a request that no batch has answered."""
    return BatchResult(custom_id=key, error={"message": "no batch answered the request"})


def _words(error: JsonValue) -> str:
    """The message of an error, whichever form it has."""
    if isinstance(error, dict):
        return str(error.get("message") or "")
    return str(error or "")
