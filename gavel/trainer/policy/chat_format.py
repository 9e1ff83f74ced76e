"""Which renderer makes the prompts of a base model.

In this order: the one that was named; the exact one that the `renderers` library has for a published model; the one of
its architecture, if it renders probe conversations as the tokenizer's own template does; that template itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from renderers import Renderer, config_from_name, create_renderer

from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.policy.loading import BaseModelError
from gavel.trainer.policy.template_renderer import CALLED, SAID, TOOLS, ChatFormatError, TemplateRenderer

TEMPLATE = "template"
"""The name that chooses the model's own template."""
_ASKED_AGAIN: list[Any] = [*SAID, {"role": "user", "content": "And then?"}]
_ANSWERED: list[Any] = [*CALLED, {"role": "tool", "tool_call_id": "c1", "name": "look_up", "content": "found"}]
_WITH_SYSTEM: list[Any] = [{"role": "system", "content": "Be brief."}, *_ASKED_AGAIN]
_PROBES: tuple[tuple[list[Any], list[Any] | None], ...] = (
    (SAID[:1], None),
    (_ASKED_AGAIN, None),
    (_WITH_SYSTEM, None),
    (SAID[:1], TOOLS),
    (_ANSWERED, TOOLS),
)


def chat_renderer(
    tokenizer: Any,
    model_type: str,
    name: str | None,
    base_model: str,
    chat_template_kwargs: Mapping[str, Any],
    stop_ids: Sequence[int] = (),
) -> Renderer:
    """The renderer of a base model. `stop_ids` end a turn beside those of the template. Raises `BaseModelError`."""
    if name is None and base_model == EMBEDDED_POLICY:
        name = "qwen3"
    if name == TEMPLATE:
        return _template_renderer(tokenizer, base_model, chat_template_kwargs, stop_ids)
    if name is not None:
        try:
            return _named(tokenizer, name, chat_template_kwargs)
        except Exception as error:  # the library raises several types for an unsuitable one
            raise BaseModelError(
                f"the chat renderer {name!r} does not suit {base_model!r}: {str(error).splitlines()[0]}",
                f"Name another of the `renderers` library, such as qwen3, or {TEMPLATE} for the model's own template.",
            ) from error
    for candidate in (None, model_type, model_type.replace("_", "-"), model_type.replace("_", ".")):
        try:
            found = _named(tokenizer, candidate, chat_template_kwargs)
        except Exception:  # it has none of that name, or it does not take the tokenizer
            continue
        if type(found).__name__ == "DefaultRenderer":
            continue
        if candidate is None or _renders_alike(found, tokenizer, chat_template_kwargs):
            return found
    return _template_renderer(tokenizer, base_model, chat_template_kwargs, stop_ids)


def _named(tokenizer: Any, name: str | None, kwargs: Mapping[str, Any]) -> Renderer:
    if name is None:
        return create_renderer(tokenizer, None, chat_template_kwargs=dict(kwargs) or None)
    config: Any = config_from_name(name)
    return create_renderer(tokenizer, type(config).model_validate({**config.model_dump(), **kwargs}))


def _template_renderer(
    tokenizer: Any, base_model: str, kwargs: Mapping[str, Any], stop_ids: Sequence[int]
) -> TemplateRenderer:
    if not getattr(tokenizer, "chat_template", None):
        raise BaseModelError(
            f"the tokenizer of {base_model!r} has no chat template, and no exact renderer is known for the model",
            "Use an instruction-tuned model, or pass renderer='qwen3' (or another name of the `renderers` library).",
        )
    try:
        return TemplateRenderer(tokenizer, kwargs, stop_ids)
    except ChatFormatError as error:
        raise BaseModelError(
            f"the chat template of {base_model!r} cannot be used: {error}",
            "Pass renderer='qwen3' (or another name of the `renderers` library).",
        ) from error


def _renders_alike(renderer: Renderer, tokenizer: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a renderer gives the tokens of the tokenizer's template, on every probe that the template takes."""
    if not getattr(tokenizer, "chat_template", None):
        return True
    for messages, tools in _PROBES:
        try:
            expected = tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False, **kwargs
            )
        except Exception:  # a template may refuse what it does not know
            continue
        try:
            found = renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
        except Exception:
            return False
        if list(found) != list(expected):
            return False
    return True
