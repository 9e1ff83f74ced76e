"""The vendors' batch APIs through LiteLLM: files of requests, answered within a day.

Requests without side effects are retried after temporary failures. Creating a batch costs money and is not: after a
failure the caller looks for the batch by its tag. LiteLLM can only read Anthropic's batches, and takes those of Vertex
AI and Bedrock from buckets in the user's own cloud.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay

from gavel.base.network import TRANSPORT_ERRORS
from gavel.llm.cassette import Question
from gavel.llm.completion import CONNECTION
from gavel.llm.errors import LlmError
from gavel.llm.failures import may_pass, pause_of, read_failure, remedy
from gavel.llm.prices import Prices, price
from gavel.llm.providers import load_litellm, model_info

_TAG = "gavel"
_PATIENCE_SECONDS = 300.0
_TIMEOUT = 120.0
_PAGE, _PAGES = 100, 50


@dataclass(frozen=True, slots=True)
class Vendor:
    """One provider's differences from OpenAI's batches."""

    provider: str
    """Its name in LiteLLM."""
    price_share: float = 0.5
    """Price of a token in a batch, as a share of its usual price."""
    can_list: bool = True
    """Whether LiteLLM lists its batches. If not, a batch whose creation was interrupted is not found again."""
    names_model: bool = False
    """Whether the batch itself names the model, and its lines hold no method and no URL."""
    is_own_server: bool = False
    """Whether it is a server of the user's own, whose address LiteLLM must be given."""
    results_have_no_file: bool = False
    """Whether results are read by the batch's id, including those of a cancelled batch."""


_VENDORS = {
    "openai": Vendor("openai"),
    "azure": Vendor("azure"),
    "mistral": Vendor("mistral", can_list=False, names_model=True),
    "xai": Vendor("xai", price_share=0.8, results_have_no_file=True),
    "hosted_vllm": Vendor("hosted_vllm", price_share=1.0, is_own_server=True),
    "litellm_proxy": Vendor("litellm_proxy", price_share=1.0, is_own_server=True),
}


def vendor_of(model: str, params: Mapping[str, Any]) -> Vendor:
    """The vendor of a model. Raises `LlmError` for one whose batches are not supported."""
    _, provider, _, _ = load_litellm().get_llm_provider(model, params.get("custom_llm_provider"))
    if provider not in _VENDORS:
        *others, last = _VENDORS
        raise LlmError(
            f"{model} cannot be asked in batches: its provider is {provider}.",
            f"Models of {', '.join(others)} and {last} can, and those of any server with OpenAI's batch interface, "
            "as openai/MODEL with --judge-param api_base=URL. For others leave out --batch.",
        )
    return _VENDORS[provider]


def connection(model: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The connection parameters of a request to the model, as LiteLLM's batch calls take them."""
    vendor = vendor_of(model, params)
    given = {name: params[name] for name in CONNECTION - {"timeout", "client"} if name in params}
    if address := given.pop("base_url", None):
        given.setdefault("api_base", address)
    if vendor.is_own_server:
        _, _, key, address = load_litellm().get_llm_provider(model, params.get("custom_llm_provider"))
        given = {"api_base": address, "api_key": key} | given
        if not given["api_base"]:
            raise LlmError(f"{model} needs the address of its server.", "Add --judge-param api_base=http://HOST/v1.")
    if vendor.names_model:
        given["model"] = model
    return given | {"custom_llm_provider": vendor.provider}


def batch_price(model: str, prices: Prices, params: Mapping[str, Any] | None = None) -> tuple[float, float] | None:
    """USD per million tokens in a batch: by LiteLLM's table, else the vendor's share of the price; None = unknown."""
    if model not in prices:
        listed = model_info(model)
        per_token = listed.get("input_cost_per_token_batches"), listed.get("output_cost_per_token_batches")
        if per_token[0] and per_token[1]:
            return per_token[0] * 1e6, per_token[1] * 1e6
    full, share = price(model, prices), vendor_of(model, params or {}).price_share
    return None if full is None else (share * full[0], share * full[1])


def request_line(question: Question, options: Mapping[str, Any]) -> bytes:
    """The batch line for the question, with the body that LiteLLM would send with these options.

    Raises `LlmError` for a parameter that the model does not accept.
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


@dataclass(frozen=True, slots=True)
class BatchStatus:
    state: str
    """The vendor's name for it: validating, in_progress, finalizing, completed, failed, expired, cancelled."""
    total: int
    """Requests; 0 until they are counted."""
    done: int
    files: tuple[str, ...]
    """Ids of the files with results."""
    problem: str
    """Reason for the failure of the whole batch."""

    @property
    def is_over(self) -> bool:
        return self.state in ("completed", "failed", "expired", "cancelled")


class BatchApi:
    """One vendor's batch API with one user's credentials."""

    def __init__(self, model: str, params: Mapping[str, Any]) -> None:
        self._model = model
        self.vendor = vendor_of(model, params)
        self._options = connection(model, params) | {"timeout": _TIMEOUT, "max_retries": 0, "num_retries": 0}

    async def upload(self, requests: bytes) -> str:
        """Uploads these requests; returns the id of the new file."""
        file = ("requests.jsonl", requests, "application/jsonl")
        return (await self._call("acreate_file", file=file, purpose="batch")).id

    async def create(self, file_id: str, tag: str) -> str | None:
        """Creates a batch; returns its id, or None if it is unknown whether it exists: then look for it."""
        wanted: dict[str, Any] = {"completion_window": "24h", "endpoint": "/v1/chat/completions"}
        wanted |= {"input_file_id": file_id, "metadata": {_TAG: tag, "name": f"{_TAG} {tag}"}}
        try:
            batch = await self._call("acreate_batch", _is_rate_limit, **wanted)
        except LlmError as error:
            if error.__cause__ and _may_pass(error.__cause__):
                return None
            raise
        return batch.id

    async def find(self, tag: str) -> str | None:
        """The id of the batch with this tag."""
        after: dict[str, Any] = {}
        for _ in range(_PAGES):
            page = await self._call("alist_batches", limit=_PAGE, **after)
            for batch in page.data:
                metadata: dict[str, str] = batch.metadata or {}
                if any(tag in value for value in metadata.values()):
                    return batch.id
            if not page.has_more or not page.data:
                break
            after = {"after": getattr(page, "next_page_token", None) or page.data[-1].id}
        return None

    async def status(self, batch_id: str) -> BatchStatus:
        batch = await self._call("aretrieve_batch", batch_id=batch_id)
        counts = batch.request_counts
        errors: list[Any] = (batch.errors.data if batch.errors else None) or []
        files = filter(None, (batch.output_file_id, batch.error_file_id))
        if self.vendor.results_have_no_file and batch.status in ("completed", "cancelled"):
            files = (batch_id,)
        return BatchStatus(
            state=batch.status,
            total=counts.total if counts else 0,
            done=counts.completed + counts.failed if counts else 0,
            files=tuple(files),
            problem="; ".join(f"{error.message} ({error.code})" for error in errors[:3]),
        )

    async def content(self, file_id: str) -> bytes:
        return (await self._call("afile_content", file_id=file_id)).content

    async def _call(self, name: str, again: Callable[[BaseException], bool] | None = None, **arguments: Any) -> Any:
        """Calls LiteLLM's function of this name; retries while `again` accepts the error, by default while it is
        temporary."""
        retrying = AsyncRetrying(
            retry=retry_if_exception(again or _may_pass),
            wait=pause_of,
            stop=stop_after_delay(_PATIENCE_SECONDS),
            reraise=True,
        )
        try:
            return await retrying(getattr(load_litellm(), name), **arguments, **self._options)
        except Exception as error:  # LiteLLM raises different errors per vendor
            help_ = remedy(error) or "The same command goes on from here."
            raise LlmError(f"the batch interface of {self._model} failed: {error}", help_) from error


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, TRANSPORT_ERRORS) or may_pass(error)


def _is_rate_limit(error: BaseException) -> bool:
    """Whether the request was rejected by a rate limit, so that no batch can have been created."""
    return may_pass(error) and read_failure(error).status in (429, 529)
