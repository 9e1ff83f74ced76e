"""The vendors' batch APIs through LiteLLM: files of requests, answered within a day.

Requests without side effects are retried after temporary failures. Creating a batch costs money and is not: after a
failure the caller looks for the batch by its tag. LiteLLM can only read Anthropic's batches, and takes those of Vertex
AI and Bedrock from buckets in the user's own cloud.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay

from gavel.base.network import TRANSPORT_ERRORS
from gavel.llm.completion import CONNECTION
from gavel.llm.errors import LlmError
from gavel.llm.failures import may_pass, pause_of, remedy
from gavel.llm.prices import Prices, price
from gavel.llm.providers import load_litellm, model_info
from gavel.llm.types import Message

_TAG = "gavel"
_PATIENCE_SECONDS = 300.0
_TIMEOUT = 120.0
_NEWEST = 100
_ENDPOINT = "/v1/chat/completions"


_PRICE_SHARES = {"openai": 0.5, "azure": 0.5, "hosted_vllm": 1.0, "litellm_proxy": 1.0}
"""LiteLLM's name of each provider with batches -> price of a token in a batch, as a share of its usual price."""


def provider_of(model: str, params: Mapping[str, Any]) -> str:
    """LiteLLM's name of a model's provider. Raises `LlmError` for one whose batches are not supported."""
    _, provider, _, _ = load_litellm().get_llm_provider(model, params.get("custom_llm_provider"))
    if provider not in _PRICE_SHARES:
        *others, last = _PRICE_SHARES
        raise LlmError(
            f"{model} cannot be asked in batches: its provider is {provider}.",
            f"Models of {', '.join(others)} and {last} can, and those of any server with OpenAI's batch interface, "
            "as openai/MODEL with --judge-param api_base=URL. For others leave out --batch.",
        )
    return provider


def connection(model: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The connection parameters of a request to the model, as LiteLLM's batch calls take them."""
    provider = provider_of(model, params)
    given = {name: params[name] for name in CONNECTION - {"timeout", "client"} if name in params}
    if address := given.pop("base_url", None):
        given.setdefault("api_base", address)
    if _PRICE_SHARES[provider] == 1:  # a server of the user's own
        _, _, key, address = load_litellm().get_llm_provider(model, params.get("custom_llm_provider"))
        given = {"api_base": address, "api_key": key} | given
        if not given["api_base"]:
            raise LlmError(f"{model} needs the address of its server.", "Add --judge-param api_base=http://HOST/v1.")
    return given | {"custom_llm_provider": provider}


def batch_price(model: str, prices: Prices, params: Mapping[str, Any]) -> tuple[float, float] | None:
    """USD per million tokens in a batch: by LiteLLM's table, else the vendor's share of the price; None = unknown."""
    if model not in prices:
        listed = model_info(model)
        per_token = listed.get("input_cost_per_token_batches"), listed.get("output_cost_per_token_batches")
        if per_token[0] and per_token[1]:
            return per_token[0] * 1e6, per_token[1] * 1e6
    full, share = price(model, prices), _PRICE_SHARES[provider_of(model, params)]
    return None if full is None else (share * full[0], share * full[1])


def request_body(model: str, messages: Sequence[Message], options: Mapping[str, Any]) -> dict[str, Any]:
    """The body that LiteLLM would send. Raises `LlmError` for a parameter that the model does not accept."""
    litellm, provider = load_litellm(), provider_of(model, options)
    name, _, _, _ = litellm.get_llm_provider(model, options.get("custom_llm_provider"))
    given = {key: value for key, value in options.items() if key not in CONNECTION}
    try:
        body: dict[str, Any] = litellm.utils.get_optional_params(model=name, custom_llm_provider=provider, **given)
    except litellm.UnsupportedParamsError as error:
        raise LlmError(f"{model} does not take a parameter: {error}", "Leave it out.") from error
    extra: dict[str, Any] = body.pop("extra_body", None) or {}
    body.pop("stream", None)
    return {"model": name, "messages": list(messages), **body, **extra}


class BatchApi:
    """One vendor's batch API with one user's credentials."""

    def __init__(self, model: str, params: Mapping[str, Any]) -> None:
        self._model = model
        self._options = connection(model, params) | {"timeout": _TIMEOUT, "max_retries": 0, "num_retries": 0}

    async def upload(self, requests: bytes) -> str:
        """Uploads these requests; returns the id of the new file."""
        file = ("requests.jsonl", requests, "application/jsonl")
        return (await self._call("acreate_file", file=file, purpose="batch")).id

    async def create(self, file_id: str, tag: str) -> str | None:
        """Creates a batch; returns its id, or None if it is unknown whether it exists: then look for it."""
        wanted: dict[str, Any] = {"completion_window": "24h", "endpoint": _ENDPOINT}
        wanted |= {"input_file_id": file_id, "metadata": {_TAG: tag}}
        try:
            return (await self._call("acreate_batch", 0.0, **wanted)).id
        except LlmError as error:
            if error.__cause__ and _may_pass(error.__cause__):
                return None
            raise

    async def find(self, tag: str) -> str | None:
        """The id of the batch with this tag, one of the newest."""
        page = await self._call("alist_batches", limit=_NEWEST)
        return next((batch.id for batch in page.data if batch.metadata and batch.metadata.get(_TAG) == tag), None)

    async def retrieve(self, batch_id: str) -> Any:
        """The batch in OpenAI's form."""
        return await self._call("aretrieve_batch", batch_id=batch_id)

    async def content(self, file_id: str) -> bytes:
        return (await self._call("afile_content", file_id=file_id)).content

    async def _call(self, name: str, patience: float = _PATIENCE_SECONDS, **arguments: Any) -> Any:
        """Calls LiteLLM's function of this name; for so many seconds again after a temporary failure."""
        stop = stop_after_delay(patience)
        retrying = AsyncRetrying(retry=retry_if_exception(_may_pass), wait=pause_of, stop=stop, reraise=True)
        try:
            return await retrying(getattr(load_litellm(), name), **arguments, **self._options)
        except Exception as error:  # LiteLLM raises different errors per vendor
            help_ = remedy(error) or "The same command goes on from here."
            raise LlmError(f"the batch interface of {self._model} failed: {error}", help_) from error


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, TRANSPORT_ERRORS) or may_pass(error)
