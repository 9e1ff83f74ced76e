"""Which renderer makes the prompts of a base model.

In this order: the one that was named; the exact one that the `renderers` library has for a published model; the one of
its architecture, if it renders probe conversations as the tokenizer's own template does; that template itself.
Renderers ask for the tokens of the same few headers at every turn, so short texts' encodings are remembered.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import ValidationError
from renderers import Renderer, config_from_name, create_renderer
from renderers.base import MODEL_RENDERER_MAP

from gavel.trainer.embedded import SCENARIOS
from gavel.trainer.policy.loading import BaseModelError
from gavel.trainer.policy.template_renderer import (
    ANSWERED,
    SAID,
    TEMPLATE_ERRORS,
    TOOLS,
    ChatFormatError,
    TemplateRenderer,
)

_LONGEST = 64
"""Characters of a text that is remembered."""
_TEXTS = 1024
_PLAIN = {"add_special_tokens": False}
_WITH_OFFSETS = {"add_special_tokens": False, "return_offsets_mapping": True}


class RememberedEncodings:
    """Remembers the encodings of short texts, the least recently used of which are dropped first."""

    def __init__(self, tokenizer: Any) -> None:
        """No token may be added to `tokenizer` from now on."""
        self._tokenizer = tokenizer
        self._ids = lru_cache(_TEXTS)(lambda text: tuple(tokenizer.encode(text, **_PLAIN)))
        self._with_offsets = lru_cache(_TEXTS)(lambda text: tokenizer(text, **_WITH_OFFSETS))

    def encode(self, text: Any, **options: Any) -> list[int]:
        if options == _PLAIN and _is_short(text):
            return list(self._ids(text))
        return self._tokenizer.encode(text, **options)

    def __call__(self, text: Any, **options: Any) -> Any:
        """With offsets, the answer for a short text is shared: its lists are read only."""
        if options == _WITH_OFFSETS and _is_short(text):
            return self._with_offsets(text)
        return self._tokenizer(text, **options)

    def __getattr__(self, name: str) -> Any:
        if name == "_tokenizer":  # not set yet: while it is copied
            raise AttributeError(name)
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return len(self._tokenizer)


def _is_short(text: object) -> bool:
    return isinstance(text, str) and len(text) <= _LONGEST


_LOG = logging.getLogger(__name__)
TEMPLATE = "template"
"""The name that chooses the model's own template."""
_UNFIT = (AssertionError, AttributeError, ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError)
"""What renderers raise for a tokenizer, a conversation or an argument that is not theirs."""
_ASKED_AGAIN: list[Any] = [*SAID, {"role": "user", "content": "And then?"}]
_WITH_SYSTEM: list[Any] = [{"role": "system", "content": "Be brief."}, *_ASKED_AGAIN]
_PROBES: tuple[tuple[list[Any], list[Any] | None], ...] = (
    (SAID[:1], None),
    (_ASKED_AGAIN, None),
    (_WITH_SYSTEM, None),
    (SAID[:1], TOOLS),
    (ANSWERED, TOOLS),
)


class ArgumentsError(ValueError):
    """Arguments of the chat template that a renderer does not take."""


def chat_renderer(
    tokenizer: Any,
    model_type: str,
    name: str | None,
    base_model: str,
    chat_template_kwargs: Mapping[str, Any],
    stop_ids: Sequence[int] = (),
) -> Renderer:
    """The renderer of a base model. `stop_ids` end a turn beside those of the template. Raises `BaseModelError`."""
    if name is None:
        published = MODEL_RENDERER_MAP.get(getattr(tokenizer, "name_or_path", ""))
        name = "qwen3" if base_model in SCENARIOS else published
    if name is None:
        found = _family_renderer(tokenizer, model_type, base_model, chat_template_kwargs)
        return found or _template_renderer(tokenizer, base_model, chat_template_kwargs, stop_ids)
    if name == TEMPLATE:
        return _template_renderer(tokenizer, base_model, chat_template_kwargs, stop_ids)
    try:
        found = _named(tokenizer, name, chat_template_kwargs)
        found.render_ids(SAID[:1], add_generation_prompt=True)  # some find out only now that a tokenizer is not theirs
        return found
    except ArgumentsError as error:
        raise BaseModelError(
            f"the chat renderer {name!r} does not suit these chat_template_kwargs: {error}",
            f"Leave it out, or pass renderer='{TEMPLATE}' for the model's own template, where that reads it.",
        ) from error
    except _UNFIT as error:
        raise BaseModelError(
            f"the chat renderer {name!r} does not suit {base_model!r}: {_told(error)}",
            f"Name another of the `renderers` library, such as qwen3, or pass renderer='{TEMPLATE}', the model's own.",
        ) from error


def _family_renderer(tokenizer: Any, model_type: str, base_model: str, kwargs: Mapping[str, Any]) -> Renderer | None:
    """The renderer of the architecture; None where there is none, or the model's template is another, which is told."""
    name = next(filter(_is_known, (model_type, model_type.replace("_", "-"), model_type.replace("_", "."))), None)
    if name is None:
        return None
    try:
        found = _named(tokenizer, name, kwargs)
        difference = _difference(found, tokenizer, kwargs)
    except _UNFIT as error:
        found, difference = None, f"it cannot be used: {_told(error)}"
    if difference is None:
        return found
    _LOG.warning(
        "%s does not use the chat renderer %s of its family, but its own template: %s", base_model, name, difference
    )
    return None


def _told(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _is_known(name: str) -> bool:
    try:
        config_from_name(name)
    except ValueError:
        return False
    return True


def _named(tokenizer: Any, name: str, kwargs: Mapping[str, Any]) -> Renderer:
    config: Any = config_from_name(name)
    fields = type(config).model_fields
    if unread := [each for each in kwargs if each not in fields]:
        known = [field for field in fields if field != "name"]
        raise ArgumentsError(f"it takes no {unread[0]}, but {', '.join(known)}")
    try:
        chosen = type(config).model_validate({**config.model_dump(), **kwargs})
    except ValidationError as error:
        first = error.errors()[0]
        raise ArgumentsError(f"{'.'.join(map(str, first['loc']))}={first['input']!r}: {first['msg']}") from error
    return create_renderer(RememberedEncodings(tokenizer), chosen)


def rendering_by(
    renderer: Renderer, tokenizer: Any, chat_template_kwargs: Mapping[str, Any], stop_ids: Sequence[int] = ()
) -> Renderer:
    """The same chat format with other arguments. Raises `ChatFormatError` for those that it does not take."""
    try:
        if isinstance(renderer, TemplateRenderer):
            return TemplateRenderer(tokenizer, chat_template_kwargs, stop_ids)
        config: Any = getattr(renderer, "config")  # noqa: B009
        return _named(tokenizer, config.name, chat_template_kwargs)
    except _UNFIT as error:
        raise ChatFormatError(f"chat_template_kwargs: {_told(error)}") from error


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
    except ValueError as error:
        raise BaseModelError(
            f"the chat template of {base_model!r} cannot be used: {error}",
            "Pass renderer='qwen3' (or another name of the `renderers` library).",
        ) from error


def _difference(renderer: Renderer, tokenizer: Any, kwargs: Mapping[str, Any]) -> str | None:
    """How a renderer's tokens differ from those of the tokenizer's template, over the probes that the template takes.

    None where they do not, and where there is no template to compare with. Raises what the renderer raises.
    """
    if not getattr(tokenizer, "chat_template", None):
        return None
    compared = False
    for messages, tools in _PROBES:
        try:
            expected = tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False, **kwargs
            )
        except TEMPLATE_ERRORS:  # it may refuse a system message, or tools
            continue
        compared = True
        found = renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
        if list(found) != list(expected):
            what = "a conversation with tools" if tools else f"a conversation of {len(messages)} messages"
            return f"they render {what} differently"
    return None if compared else "the template renders no conversation to compare with"
