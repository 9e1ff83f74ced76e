"""A vendor's batch interface through LiteLLM: files of requests, and batches that answer them within a day.

Requests that change nothing are repeated while the failure may pass. Creating a batch costs money, so it is not: after
a failure the caller looks for the batch by its tag.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import openai
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay

from gavel.llm.errors import LlmError
from gavel.llm.providers import load_litellm
from gavel.llm.question import Question
from gavel.llm.retry import may_pass, pause, remedy

PROVIDERS = ("openai", "azure")
"""Those with files and batches in OpenAI's form, where a batch can be found again by its metadata."""
CONNECTION = ("api_key", "api_base", "base_url", "api_version", "organization", "custom_llm_provider", "timeout")
"""Parameters that say where a request goes; they are no part of it."""
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


def provider_of(model: str, params: Mapping[str, Any]) -> tuple[str, str]:
    """The vendor of a model, and its name there. Raises `LlmError` for one whose batches are not supported."""
    name, provider, _, _ = load_litellm().get_llm_provider(model, params.get("custom_llm_provider"))
    if provider not in PROVIDERS:
        raise LlmError(
            f"{model} cannot be asked in batches: its provider is {provider}.",
            f"Models of {' and '.join(PROVIDERS)} can; for others leave out --batch.",
        )
    return provider, name


def request_body(question: Question, options: Mapping[str, Any]) -> dict[str, Any]:
    """The chat completion that LiteLLM would send with these options.

    Raises `LlmError` for a parameter that the model does not take.
    """
    provider, name = provider_of(question.model, question.params)
    given = {key: value for key, value in options.items() if key not in CONNECTION}
    litellm = load_litellm()
    try:
        body: dict[str, Any] = litellm.utils.get_optional_params(model=name, custom_llm_provider=provider, **given)
    except litellm.UnsupportedParamsError as error:
        raise LlmError(f"{question.model} does not take a parameter: {error}", "Leave it out.") from error
    extra: dict[str, Any] = body.pop("extra_body", None) or {}
    body.pop("stream", None)
    return {"model": name, "messages": list(question.messages), **body, **extra}


class BatchApi:
    """The batch interface of one vendor, as one user reaches it."""

    def __init__(self, model: str, params: Mapping[str, Any]) -> None:
        provider, _ = provider_of(model, params)
        given = {name: params[name] for name in CONNECTION if name in params and name != "timeout"}
        if address := given.pop("base_url", None):
            given.setdefault("api_base", address)
        given |= {"custom_llm_provider": provider, "timeout": _TIMEOUT, "max_retries": 0, "num_retries": 0}
        self._model = model
        self._options: dict[str, Any] = given

    async def upload(self, requests: bytes) -> str:
        """The id of a new file with these requests."""
        litellm = load_litellm()
        file = ("requests.jsonl", requests, "application/jsonl")
        uploaded = await self._patiently(lambda: litellm.acreate_file(file=file, purpose="batch", **self._options))
        return uploaded.id

    async def create(self, file_id: str, tag: str) -> str | None:
        """The id of a new batch; None = it is not known whether there is one: look for its tag."""
        litellm = load_litellm()
        try:
            batch = await litellm.acreate_batch(
                completion_window="24h",
                endpoint="/v1/chat/completions",
                input_file_id=file_id,
                metadata={_TAG: tag},
                **self._options,
            )
        except openai.OpenAIError as error:
            if may_pass(error):
                return None
            raise self._error(error) from error
        return batch.id

    async def find(self, tag: str) -> str | None:
        """The id of the batch with this tag."""
        async for batch in self._all():
            metadata: dict[str, str] = batch.metadata or {}
            if metadata.get(_TAG) == tag:
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
            after = {"after": page.data[-1].id}

    async def status(self, batch_id: str) -> BatchStatus:
        batch: Any = await self._patiently(lambda: load_litellm().aretrieve_batch(batch_id, **self._options))
        counts = batch.request_counts
        errors: list[Any] = (batch.errors.data if batch.errors else None) or []
        return BatchStatus(
            state=batch.status,
            total=counts.total if counts else 0,
            done=counts.completed + counts.failed if counts else 0,
            files=tuple(filter(None, (batch.output_file_id, batch.error_file_id))),
            problem="; ".join(f"{error.message} ({error.code})" for error in errors[:3]),
        )

    async def content(self, file_id: str) -> bytes:
        file = await self._patiently(lambda: load_litellm().afile_content(file_id=file_id, **self._options))
        return file.content

    async def _patiently(self, request: Callable[[], Awaitable[_T]]) -> _T:
        retrying = AsyncRetrying(
            retry=retry_if_exception(may_pass), wait=pause, stop=stop_after_delay(_PATIENCE_SECONDS), reraise=True
        )

        async def attempt() -> _T:
            return await request()

        try:
            return await retrying(attempt)
        except openai.OpenAIError as error:
            raise self._error(error) from error

    def _error(self, error: openai.OpenAIError) -> LlmError:
        help_ = remedy(error) or "The same command goes on from here."
        return LlmError(f"the batch interface of {self._model} failed: {error}", help_)
