"""Local models: Python functions that are called like any model, through LiteLLM and by name, without a key.

register("stand-in", reply)        from then on `stand-in` and `gavel/stand-in` name it wherever a model is named
"""

from collections.abc import Callable
from typing import Any

from gavel.base.errors import GavelError
from gavel.llm.errors import LlmError
from gavel.llm.types import Message

PROVIDER = "gavel"
"""The part of a local model's LiteLLM id before the slash."""

LocalModel = Callable[[list[Message]], str]
"""(messages) -> text of the reply. Raises `GavelError` for a prompt that it cannot answer."""

_models: dict[str, LocalModel] = {}


def register(name: str, model: LocalModel) -> None:
    """Registers `model` under `name`."""
    _models[name] = model


def names() -> list[str]:
    return list(_models)


def model_id(name: str) -> str:
    """The LiteLLM id of a model's name: `stand-in` is `gavel/stand-in`; any other name is its own id."""
    return f"{PROVIDER}/{name}" if name in _models else name


def answer(name: str, messages: list[Message]) -> str:
    """The reply of the local model `name`. Raises `LlmError` for an unknown name."""
    if name not in _models:
        raise LlmError(f"there is no model {PROVIDER}/{name}.", f"There are: {', '.join(_models)}.")
    return _models[name](messages)


def provider() -> Any:
    """A LiteLLM custom provider that serves the local models. Imports litellm."""
    from litellm import ModelResponse, Usage
    from litellm.exceptions import BadRequestError
    from litellm.llms.custom_llm import CustomLLM

    class LocalModels(CustomLLM):
        async def acompletion(self, model: str, messages: list[Message], *args: Any, **kwargs: Any) -> ModelResponse:
            try:
                text = answer(model, messages)
            except GavelError as error:
                raise BadRequestError(str(error), model=model, llm_provider=PROVIDER) from error
            prompt, completion = sum(len(m["content"]) for m in messages) // 4, len(text) // 4  # estimated tokens
            response: ModelResponse = kwargs["model_response"]
            response.choices[0].message.content = text  # type: ignore[union-attr]
            usage = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
            setattr(response, "usage", usage)  # noqa: B010 - a field that LiteLLM declares at run time
            return response

    return LocalModels()
