"""The vendors whose batches LiteLLM speaks from the upload to the results, and how they differ.

LiteLLM only reads batches of Anthropic, and takes those of Vertex AI and Bedrock from buckets of the user's own cloud.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gavel.llm.dialect import CONNECTION
from gavel.llm.errors import LlmError
from gavel.llm.prices import Price, Prices, price
from gavel.llm.providers import load_litellm, model_info


@dataclass(frozen=True, slots=True)
class Vendor:
    """One vendor, by its provider's name in LiteLLM. The defaults are OpenAI's ways."""

    provider: str
    price_share: float = 0.5
    """What a token costs in a batch, as a share of its other price."""
    can_list: bool = True
    """Whether LiteLLM lists its batches. Where it does not, one whose creation was broken off is not found again."""
    names_model: bool = False
    """Whether a batch names its model, and its lines hold no method and no URL."""
    is_own_server: bool = False
    """Whether it is a server of the user's own, whose address must be given to LiteLLM."""
    results_have_no_file: bool = False
    """Whether results are read by the batch's id, those of a cancelled batch too."""


_VENDORS = {
    vendor.provider: vendor
    for vendor in (
        Vendor("openai"),
        Vendor("azure"),
        Vendor("mistral", can_list=False, names_model=True),
        Vendor("xai", price_share=0.8, results_have_no_file=True),
        Vendor("hosted_vllm", price_share=1.0, is_own_server=True),
        Vendor("litellm_proxy", price_share=1.0, is_own_server=True),
    )
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
    """The parameters that say where a request to the model goes, as the batch calls of LiteLLM take them."""
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


def batch_price(model: str, prices: Prices, params: Mapping[str, Any] | None = None) -> Price | None:
    """USD per million tokens in a batch: by LiteLLM's table, else the vendor's share of the price; None = unknown."""
    if model not in prices:
        listed = model_info(model)
        per_token = listed.get("input_cost_per_token_batches"), listed.get("output_cost_per_token_batches")
        if per_token[0] and per_token[1]:
            return per_token[0] * 1e6, per_token[1] * 1e6
    full, share = price(model, prices), vendor_of(model, params or {}).price_share
    return None if full is None else (share * full[0], share * full[1])
