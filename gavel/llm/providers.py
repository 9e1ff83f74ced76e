"""LiteLLM, imported lazily: checks that a model can be called, its table's data on models, and local models.

Local models are Python functions that are called in this process, by name and without a key: after
`register("stand-in", reply)`, `stand-in` and `gavel/stand-in` name it wherever a model is named.
"""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from gavel.base.errors import GavelError
from gavel.base.network import pass_proxies
from gavel.llm.errors import LlmError, MissingKeyError, UnknownModelError
from gavel.llm.types import CachedPrefix, Message, Reply, text_of

PROVIDER = "gavel"
"""Provider prefix of local models' LiteLLM ids."""
LocalModel = Callable[[list[Message]], str]
"""(messages) -> text of the reply. Raises `GavelError` for a prompt that it cannot answer."""
_models: dict[str, LocalModel] = {}

OWN_SERVERS = ("ollama/", "ollama_chat/", "hosted_vllm/", "lm_studio/", "llamafile/")
"""Providers that are servers of the user's own."""
_KEYLESS = ("gavel/", "azure/", *OWN_SERVERS)
"""Providers that need no API key: local servers, and Azure, which has other ways to authenticate."""
_FETCHING = ("openai/", "azure/", "openrouter/", "hosted_vllm/", "xai/", "fireworks_ai/", "together_ai/")
"""Providers that accept an image's URL and fetch it."""
ImageSupport = Literal["none", "embedded", "any"]
"""Images that a model accepts: none, embedded bytes only, or also URLs."""


def register(name: str, model: LocalModel) -> None:
    _models[name] = model


def names() -> list[str]:
    return list(_models)


def model_id(name: str) -> str:
    """The LiteLLM id of a model's name: `stand-in` is `gavel/stand-in`; any other name is its own id."""
    return f"{PROVIDER}/{name}" if name in _models else name


def is_local(model: str) -> bool:
    """Whether the LiteLLM id or name is that of a local model."""
    return model_id(model).startswith(f"{PROVIDER}/")


def answer(model: str, messages: list[Message]) -> Reply:
    """The reply of the local model with this id. Raises `LlmError`, with the model's own message if it has none."""
    _check_local(model)
    try:
        text = _models[model.rpartition("/")[2]](messages)
    except GavelError as error:
        raise LlmError(error.message, error.remedy) from error
    return Reply(text, sum(len(text_of(each)) for each in messages) // 4, len(text) // 4, 0.0, "stop")


def _check_local(model: str) -> None:
    if model.rpartition("/")[2] not in _models:
        raise UnknownModelError(f"there is no model {model}.", f"There are: {', '.join(_models)}.")


def load_litellm(url: object = None) -> ModuleType:
    """Imports LiteLLM, which takes seconds the first time, and makes it reach this machine, and `url`, without the
    environment's proxy."""
    pass_proxies(url)
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True  # otherwise it prints advertisements to stdout on errors
    return litellm


async def load_litellm_in_thread() -> None:
    """Imports LiteLLM while the event loop goes on."""
    if not getattr(sys.modules.get("litellm"), "suppress_debug_info", False):  # as a half imported one has not
        await asyncio.to_thread(load_litellm)


@cache
def cl100k() -> Any:
    """tiktoken's encoding `cl100k_base`, from the file that LiteLLM ships, without importing LiteLLM."""
    import tiktoken

    if (litellm := find_spec("litellm")) is not None and litellm.origin is not None:
        shipped = Path(litellm.origin).parent / "litellm_core_utils" / "tokenizers"
        os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(shipped))
    return tiktoken.get_encoding("cl100k_base")


@asynccontextmanager
async def time_limit(model: str, seconds: float) -> AsyncGenerator[None]:
    """Raises LiteLLM's error if the block takes longer; its own timeout does not end a reply that trickles in."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        words = f"Timeout: no complete reply within {seconds:.3g} s"
        raise load_litellm().Timeout(words, model=model, llm_provider="") from error


@cache
def model_info(model: str) -> Mapping[str, Any]:
    """LiteLLM's table entry of a model: prices per token, `max_output_tokens`, …; empty when it is not listed."""
    if is_local(model):
        return {}
    litellm = load_litellm()
    try:
        return dict(litellm.get_model_info(model))
    except Exception as error:  # various types, for an unlisted model
        logging.getLogger(__name__).debug("LiteLLM's table has no %s: %s", model, error)
        return {}


def image_support(model: str | object, *, asked: bool) -> ImageSupport:
    """Images that a model accepts. `asked`: the user says that it supports images; else LiteLLM's table decides.

    URLs are passed on to providers that fetch them; for others LiteLLM would fetch them from this machine.
    """
    if not isinstance(model, str):
        return "any" if asked else "none"
    if is_local(model) or not (asked or load_litellm().supports_vision(model)):
        return "none"
    return "any" if model.startswith(_FETCHING) else "embedded"


def check_model(
    model: str, params: Mapping[str, Any] | None = None, *, instead: str = "stand-in (as a judge), ollama/qwen3"
) -> None:
    """Raises `UnknownModelError` if no provider serves `model`, `MissingKeyError` if its API key is not set, and
    `LlmError` for an invalid server address.

    `params` are the extra LiteLLM parameters of the call. `instead`: what the remedy offers without a key. Sends no
    request: it does not detect a wrong key, or a model that its provider lacks.
    """
    model, params = model_id(model), params or {}
    if is_local(model):
        return _check_local(model)
    try:
        _provider_of(model, params.get("custom_llm_provider"))
    except load_litellm().BadRequestError as error:
        name = model.rpartition("/")[2] or "o3"
        raise UnknownModelError(
            f"there is no model {model or '(an empty name)'}: LiteLLM knows nobody who serves it.",
            f"Put its provider first, as in openai/{name}, anthropic/…, ollama/…; or take {instead}.",
        ) from error
    provider = model.partition("/")[0].upper()
    variables = {name: os.environ.get(name) for name in (f"{provider}_BASE_URL", f"{provider}_API_BASE")}
    given = {name: params.get(name) for name in ("api_base", "base_url")}
    addresses = {name: str(value) for name, value in (given if any(given.values()) else variables).items() if value}
    for name, address in addresses.items():
        if not address.lower().startswith(("http://", "https://")):
            problem = f"the address of {model}'s server ({name}) is {address!r}: an address begins"
            raise LlmError(
                f"{problem} with http:// or https://.",
                f"Write {name}=http://{address.rpartition('://')[2].lstrip('/')}.",
            )
    if addresses or model.startswith(_KEYLESS) or params.keys() & {"api_key", "api_base", "base_url", "client"}:
        return
    needed = load_litellm().validate_environment(model)["missing_keys"]
    keys = [key for key in needed if key.endswith("_API_KEY")]  # clouds have other authentication too, and fail later
    own = f"{provider}_API_KEY"
    if not keys and own in os.environ and not os.environ[own].strip():  # LiteLLM would use it as a key
        keys = [own]
    if keys:
        raise MissingKeyError(
            f"the model {model} needs {' or '.join(keys)}, which is not set.",
            f"Set it in .env (see .env.example), or pick another model, such as {instead}.",
        )


@lru_cache(256)
def _provider_of(model: str, named: str | None) -> str:
    return load_litellm().get_llm_provider(model, named)[1]


def caches_prompts(model: object) -> bool:
    """Whether LiteLLM knows that the model's server caches prompts. Its table lacks OpenRouter's Claude models, to
    which it passes breakpoints on all the same."""
    if not isinstance(model, str):
        return False
    return model.startswith("openrouter/anthropic/") or bool(model_info(model).get("supports_prompt_caching"))


def min_cached_tokens(model: object) -> int:
    """Min tokens of a prompt prefix that is cached."""
    listed = model_info(model).get("prompt_cache_min_tokens") if isinstance(model, str) else None
    return int(listed or 1024)


def with_breakpoint(model: str, messages: list[Message], prefix: CachedPrefix) -> list[Message]:
    """The messages with a breakpoint (`cache_control`) at the end of the shared prefix, which costs a tenth to a half,
    for a model whose server does not detect it: Claude, wherever it is served, and Amazon's Nova."""
    needs_one = caches_prompts(model) and ("claude" in model or "amazon.nova" in model)
    if not prefix.characters or not needs_one:
        return messages
    message = messages[prefix.message]
    content = message["content"]
    parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    text = parts[0].get("text") if parts else None
    if not isinstance(text, str) or len(text) <= prefix.characters:
        return messages
    shared = {"type": "text", "text": text[: prefix.characters], "cache_control": {"type": "ephemeral"}}
    rest = {**parts[0], "text": text[prefix.characters :]}
    marked = {**message, "content": [shared, rest, *parts[1:]]}
    return [*messages[: prefix.message], marked, *messages[prefix.message + 1 :]]
