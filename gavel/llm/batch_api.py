"""A vendor's batch interface through LiteLLM: files of requests, and batches that answer them within a day.

Requests that change nothing are repeated while the failure may pass. Creating a batch costs money, so it is not: after
a failure the caller looks for the batch by its tag.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay

from gavel.base.network import TRANSPORT_ERRORS
from gavel.llm.batch_vendors import connection, vendor_of
from gavel.llm.dialect import CONNECTION
from gavel.llm.errors import LlmError
from gavel.llm.failures import may_pass, pause_of, read_failure, remedy
from gavel.llm.providers import load_litellm
from gavel.llm.question import Question

_TAG = "gavel"
_OVER = ("completed", "failed", "expired", "cancelled")
_PATIENCE_SECONDS = 300.0
_TIMEOUT = 120.0
_PAGE, _PAGES = 100, 50
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """How far a batch is."""

    state: str
    """As the vendor names it: validating, in_progress, finalizing, completed, failed, expired, cancelled."""
    total: int
    """Requests; 0 until they are counted."""
    done: int
    files: tuple[str, ...]
    """Ids of the files with results."""
    problem: str
    """Why the batch failed as a whole."""

    @property
    def is_over(self) -> bool:
        return self.state in _OVER


def request_line(question: Question, options: Mapping[str, Any]) -> bytes:
    """The line of a batch that asks the question, with the body that LiteLLM would send with these options.

    Raises `LlmError` for a parameter that the model does not take.
    """
    litellm, vendor = load_litellm(), vendor_of(question.model, question.params)
    name, _, _, _ = litellm.get_llm_provider(question.model, question.params.get("custom_llm_provider"))
    given = {key: value for key, value in options.items() if key not in CONNECTION}
    try:
        body: dict[str, Any] = litellm.utils.get_optional_params(
            model=name, custom_llm_provider=vendor.provider, **given
        )
    except litellm.UnsupportedParamsError as error:
        raise LlmError(f"{question.model} does not take a parameter: {error}", "Leave it out.") from error
    extra: dict[str, Any] = body.pop("extra_body", None) or {}
    body.pop("stream", None)
    line: dict[str, Any] = {"custom_id": question.key}
    if not vendor.names_model:
        line |= {"method": "POST", "url": "/v1/chat/completions"}
    line["body"] = {"model": name, "messages": list(question.messages), **body, **extra}
    return json.dumps(line, allow_nan=False).encode() + b"\n"


class BatchApi:
    """The batch interface of one vendor, as one user reaches it."""

    def __init__(self, model: str, params: Mapping[str, Any]) -> None:
        self._model = model
        self._vendor = vendor_of(model, params)
        self._options = connection(model, params) | {"timeout": _TIMEOUT, "max_retries": 0, "num_retries": 0}

    @property
    def can_find(self) -> bool:
        """Whether a batch can be found again whose id is not known."""
        return self._vendor.can_list

    async def upload(self, requests: bytes) -> str:
        """The id of a new file with these requests."""
        litellm = load_litellm()
        file = ("requests.jsonl", requests, "application/jsonl")
        uploaded = await self._patiently(lambda: litellm.acreate_file(file=file, purpose="batch", **self._options))
        return uploaded.id

    async def create(self, file_id: str, tag: str) -> str | None:
        """The id of a new batch; None = it is not known whether there is one: look for it."""
        litellm = load_litellm()
        try:
            batch = await self._patiently(
                lambda: litellm.acreate_batch(
                    completion_window="24h",
                    endpoint="/v1/chat/completions",
                    input_file_id=file_id,
                    metadata={_TAG: tag, "name": f"{_TAG} {tag}"},
                    **self._options,
                ),
                _is_rate_limit,  # of which nothing can have come
            )
        except LlmError as error:
            if error.__cause__ and _may_pass(error.__cause__):
                return None
            raise
        return batch.id

    async def find(self, tag: str, file_id: str) -> str | None:
        """The id of the batch with this tag, or of this file."""
        async for batch in self._all():
            metadata: dict[str, str] = batch.metadata or {}
            if batch.input_file_id == file_id or any(tag in value for value in metadata.values()):
                return batch.id
        return None

    async def _all(self) -> AsyncIterator[Any]:
        litellm, after = load_litellm(), dict[str, str]()
        for _ in range(_PAGES):
            page = await self._patiently(
                lambda after=after: litellm.alist_batches(limit=_PAGE, **after, **self._options)
            )
            for batch in page.data:
                yield batch
            if not page.has_more or not page.data:
                return
            after = {"after": getattr(page, "next_page_token", None) or page.data[-1].id}

    async def status(self, batch_id: str) -> BatchStatus:
        batch: Any = await self._patiently(lambda: load_litellm().aretrieve_batch(batch_id, **self._options))
        counts = batch.request_counts
        errors: list[Any] = (batch.errors.data if batch.errors else None) or []
        files = filter(None, (batch.output_file_id, batch.error_file_id))
        if self._vendor.results_have_no_file and batch.status in ("completed", "cancelled"):
            files = (batch_id,)
        return BatchStatus(
            state=batch.status,
            total=counts.total if counts else 0,
            done=counts.completed + counts.failed if counts else 0,
            files=tuple(files),
            problem="; ".join(f"{error.message} ({error.code})" for error in errors[:3]),
        )

    async def content(self, file_id: str) -> bytes:
        file = await self._patiently(lambda: load_litellm().afile_content(file_id=file_id, **self._options))
        return file.content

    async def _patiently(
        self, request: Callable[[], Awaitable[_T]], again: Callable[[BaseException], bool] | None = None
    ) -> _T:
        """The answer; a request that fails is repeated while `again` says so, by default while it may pass."""
        retrying = AsyncRetrying(
            retry=retry_if_exception(again or _may_pass),
            wait=pause_of,
            stop=stop_after_delay(_PATIENCE_SECONDS),
            reraise=True,
        )

        async def attempt() -> _T:
            return await request()

        try:
            return await retrying(attempt)
        except Exception as error:  # LiteLLM has errors of its own for each vendor
            help_ = remedy(error) or "The same command goes on from here."
            raise LlmError(f"the batch interface of {self._model} failed: {error}", help_) from error


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, TRANSPORT_ERRORS) or may_pass(error)


def _is_rate_limit(error: BaseException) -> bool:
    return may_pass(error) and read_failure(error).status in (429, 529)
