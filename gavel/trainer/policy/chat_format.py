"""Chooses the renderer of a base model's prompts.

In this order: the one that was named; the exact one that the `renderers` library has for a published model; the one of
its architecture, if it renders probe conversations as the tokenizer's own template does; that template itself.

`TemplateRenderer` renders by the model's own template, through transformers.

    renderer = TemplateRenderer(tokenizer, {"enable_thinking": False})
    renderer.render_ids(messages, add_generation_prompt=True)

A template only renders whole conversations, so nothing bridges from one turn to the next: the endpoint continues on
the sampled ids where the next rendering begins with the same text, and counts a mismatch where it does not. What ends a
turn, and whether tool calls can be read back, is found out by rendering probes. Where a template shows no tools, or
calls that nobody here can read, they are told in words: tools in the first turn, calls as JSON between `<tool_call>`
tags, results as the user's. A conversation without tools is not touched.
"""

import contextlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError
from jinja2.meta import find_undeclared_variables
from pydantic import ValidationError
from renderers import (
    DefaultRendererConfig,
    Message,
    ParsedToolCall,
    RenderedTokens,
    Renderer,
    ToolCallParseStatus,
    ToolSpec,
    config_from_name,
    create_renderer,
)
from renderers.base import MODEL_RENDERER_MAP
from renderers.default import DefaultRenderer
from renderers.parsers import TOOL_PARSERS
from transformers.utils.chat_template_utils import _compile_jinja_template

import gavel.prompts
from gavel.trainer.embedded import SCENARIOS, TOOL_CALLER
from gavel.trainer.policy.loading import BaseModelError

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>|<tool_call>.*", re.DOTALL)


class HermesCalls:
    """A tool parser of the `renderers` library that reads the text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def extract(self, ids: list[int]) -> tuple[list[int], list[ParsedToolCall]]:
        """The ids of the text before the first call, and the calls."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        first = _CALL.search(text)
        if first is None:
            return ids, []
        before = self._tokenizer.encode(text[: first.start()], add_special_tokens=False)
        return before, [_read(match) for match in _CALL.finditer(text)]


def _read(match: re.Match[str]) -> ParsedToolCall:
    raw, closed = match.group(), match.group(1)
    if closed is None:
        return ParsedToolCall(raw=raw, status=ToolCallParseStatus.UNCLOSED_BLOCK)
    try:
        call = json.loads(closed)
    except ValueError:
        return ParsedToolCall(raw=raw, status=ToolCallParseStatus.INVALID_JSON)
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str) or not name:
        return ParsedToolCall(raw=raw, status=ToolCallParseStatus.MISSING_NAME)
    return ParsedToolCall(raw=raw, name=name, arguments=call.get("arguments", {}), status=ToolCallParseStatus.OK)


_FILE = Path(gavel.prompts.__file__).with_name("trainer") / "tools_in_words.j2"
_ENVIRONMENT = Environment(undefined=StrictUndefined)
_ENVIRONMENT.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)  # Jinja's own escapes for HTML
_TEMPLATE = _ENVIRONMENT.from_string(_FILE.read_text(encoding="utf-8").rstrip("\n"))


def in_words(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, system: bool = True
) -> list[dict[str, Any]]:
    """The messages with `tools` in words; without tools, calls and results alone. `system`: the format has system
    turns; without, the user says what they would."""
    said = [_in_text(message) for message in messages]
    if tools:
        told = _TEMPLATE.render(tools=[tool if "function" in tool else {"function": tool} for tool in tools])
        if messages and messages[0]["role"] == "system":
            said[0]["content"] += f"\n\n{told}"
        else:
            said.insert(0, {"role": "system", "content": told})
    joins = ("tool",) if system else ("tool", "system")
    """Roles that become the user's, whose turn goes on with what the user says then."""
    found: list[dict[str, Any]] = []
    before = ""
    for message in said:
        role = message["role"]
        message["role"] = "user" if role in joins else role
        if before in joins and message["role"] == "user":
            found[-1]["content"] += ("\n" if before == role else "\n\n") + message["content"]
        else:
            found.append(message)
        before = role
    return found


def _in_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose calls, or whose result, are text."""
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "tool", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls: list[str] = []
    for call in message.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        with contextlib.suppress(ValueError):  # text that is no JSON stays as it is
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
            arguments = json.dumps(arguments, ensure_ascii=False)
        name = json.dumps(call["function"]["name"], ensure_ascii=False)
        calls.append(f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>')
    plain = {name: value for name, value in message.items() if name != "tool_calls"}
    return plain | {"content": content + "\n".join(calls)}


_LOG = logging.getLogger(__name__)
_TOLD = (
    "The chat template of %s shows no tools, or calls that cannot be read back: tools are described in the first turn, "
    "and calls are JSON between <tool_call> tags. --renderer names a format of its own, if it has one."
)
TEMPLATE_ERRORS = (TemplateError, AttributeError, KeyError, TypeError, ValueError)
"""The errors that a chat template raises for a conversation it does not support."""
_WORD = "seventeen"
_PARAMETERS = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
_FUNCTION = {"name": "look_up", "description": "Looks up.", "parameters": _PARAMETERS}
TOOLS: list[Any] = [{"type": "function", "function": _FUNCTION}]
_ASKED: list[Any] = [{"role": "user", "content": "Which number?"}]
SAID: list[Any] = [*_ASKED, {"role": "assistant", "content": _WORD}]
_MADE = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": json.dumps({"word": _WORD})}}
CALLED: list[Any] = [*_ASKED, {"role": "assistant", "content": "", "tool_calls": [_MADE]}]
_RESULT = "nineteen"
ANSWERED: list[Any] = [*CALLED, {"role": "tool", "tool_call_id": "c1", "name": "look_up", "content": _RESULT}]


class ChatFormatError(ValueError):
    """A conversation that the model's chat template cannot express."""


_GIVEN = frozenset({"messages", "tools", "add_generation_prompt"})
"""Names that every template receives, and that callers do not set; special tokens (`eos_token`) are left out by
suffix."""


def template_arguments(template: str) -> set[str]:
    """The names that a chat template reads and a caller may give: `enable_thinking`, say."""
    try:
        names = find_undeclared_variables(_compile_jinja_template(template).environment.parse(template))
    except TemplateError as error:
        raise ChatFormatError(f"it is no template of Jinja: {error}") from error
    return {name for name in names - _GIVEN if not name.endswith("_token")}


class TemplateRenderer(DefaultRenderer):
    """Renders by `tokenizer.apply_chat_template`; says which tokens a policy would have sampled."""

    def __init__(
        self, tokenizer: Any, chat_template_kwargs: Mapping[str, Any] | None = None, stop_ids: Sequence[int] = ()
    ) -> None:
        """`stop_ids`: further tokens that end a turn, such as those of the model's generation config.

        Raises `ChatFormatError` for a template that does not render one turn, or arguments that it does not take.
        """
        given = dict(chat_template_kwargs or {})
        read = template_arguments(tokenizer.get_chat_template())
        if unread := [name for name in given if name not in read]:
            known = ", ".join(sorted(read)) or "no argument"
            raise ChatFormatError(f"it does not read {unread[0]} of chat_template_kwargs, but {known}")
        super().__init__(tokenizer, DefaultRendererConfig.model_validate(given))
        self._in_words = self._untold = False
        self._stop_ids = list(dict.fromkeys([*self._turn_ends(), *super().get_stop_token_ids(), *stop_ids]))
        if not self._find_tool_parser():
            self._in_words, self._system = True, self._shows_system()
            self._find_tool_parser()
            self._untold = True

    def get_stop_token_ids(self) -> list[int]:
        return self._stop_ids

    def render(
        self, messages: list[Message], *, tools: list[ToolSpec] | None = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        """The token ids of a conversation, with the message of each, and which of them are sampled.

        A turn is attributed where the rendering up to it is a prefix of the whole; a template that rewrites earlier
        turns leaves the others without sampled tokens. Raises `ChatFormatError`.
        """
        ids = self._apply(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        indices, sampled = [-1] * len(ids), [False] * len(ids)
        before = 0
        for at, message in enumerate(messages):
            if message.get("role") != "assistant" or not at:  # nobody samples a turn that nothing comes before
                continue
            opening = self._apply(messages[:at], tools=tools, add_generation_prompt=True)
            through = self._apply(messages[: at + 1], tools=tools)
            if through[: len(opening)] != opening or ids[: len(opening)] != opening:
                continue
            end = next((n + 1 for n in range(len(opening), len(through)) if through[n] in self._stop_ids), len(through))
            if ids[:end] != through[:end]:
                continue
            indices[before : len(opening)] = [max(at - 1, 0)] * (len(opening) - before)
            header = len(self._apply(messages[:at], tools=tools))
            indices[header:end] = [at] * (end - header)
            sampled[len(opening) : end] = [True] * (end - len(opening))
            before = end
        if not add_generation_prompt:
            indices[before:] = [max(len(messages) - 1, 0)] * (len(ids) - before)
        elif messages:
            closed = len(self._apply(messages, tools=tools))
            indices[before:closed] = [len(messages) - 1] * (closed - before)
        roles = [message.get("role") or "" for message in messages]
        return RenderedTokens(token_ids=ids, message_indices=indices, sampled_mask=sampled, message_roles=roles)

    def _apply(self, messages: Any, *, tools: Any = None, add_generation_prompt: bool = False) -> list[int]:
        if tools and self._tool_parser is None:
            raise ChatFormatError("the model's chat template does not render tool calls, not even in words")
        speaks = any(message.get("role") == "tool" or message.get("tool_calls") for message in messages)
        if self._in_words and (tools or speaks):
            if self._untold:
                self._untold = False
                _LOG.warning(_TOLD, getattr(self._tokenizer, "name_or_path", None) or "the model")
            messages, tools = in_words(messages, tools or (), system=self._system), None
        try:
            return super()._apply(messages, tools=tools or None, add_generation_prompt=add_generation_prompt)
        except TEMPLATE_ERRORS as error:
            raise ChatFormatError(f"the model's chat template refuses the conversation: {error}") from error

    def _shows_system(self) -> bool:
        """Whether the template takes a system turn, and shows it."""
        try:
            shown = self._apply([{"role": "system", "content": _WORD}, *_ASKED])
        except ChatFormatError:
            return False
        return _WORD in self._tokenizer.decode(shown)

    def _turn_ends(self) -> list[int]:
        """The special token that the template puts behind an assistant's turn, if there is one."""
        opening = self._apply(_ASKED, add_generation_prompt=True)
        turn = self._apply(SAID)
        tokenizer: Any = self._tokenizer
        special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
        after = turn[len(opening) :] if turn[: len(opening)] == opening else turn
        places = [at for at in range(len(after)) if _WORD in self._tokenizer.decode(after[: at + 1])]
        if not places:
            raise ChatFormatError("the model's chat template does not show what the assistant said")
        return [token for token in after[places[0] + 1 :] if token in special][:1]

    def _find_tool_parser(self) -> bool:
        """Takes the parser that reads a rendered call back, if one does and the template shows tools and results."""
        for make in (*TOOL_PARSERS.values(), HermesCalls):
            self._tool_parser: Any = make(self._tokenizer)
            with contextlib.suppress(ChatFormatError):
                if self._reads_calls():
                    return True
        self._tool_parser = None
        return False

    def _reads_calls(self) -> bool:
        plain = self._apply(_ASKED, add_generation_prompt=True)
        opening = self._apply(_ASKED, tools=TOOLS, add_generation_prompt=True)
        turn = self._apply(CALLED, tools=TOOLS)
        if turn[: len(opening)] != opening:  # thinking that is switched off opens a turn, and leaves history
            plain, opening = self._apply(_ASKED), self._apply(_ASKED, tools=TOOLS)
        if opening == plain or turn[: len(opening)] != opening:
            return False
        calls = self.parse_response(turn[len(opening) :], prompt_ids=opening).tool_calls
        read = [(call.name, call.arguments, call.status) for call in calls]
        shown = self._tokenizer.decode(self._apply(ANSWERED, tools=TOOLS))
        return _RESULT in shown and read == [("look_up", {"word": _WORD}, ToolCallParseStatus.OK)]


TEMPLATE = "template"
"""The name that chooses the model's own template."""
_UNFIT = (AssertionError, AttributeError, ImportError, KeyError, OSError, RuntimeError, TypeError, ValueError)
"""The errors that renderers raise for a tokenizer, conversation or argument they do not support."""
_AGAIN: list[Any] = [*SAID, {"role": "user", "content": "And then?"}]
_WITH_SYSTEM: list[Any] = [{"role": "system", "content": "Be brief."}, *_AGAIN]
_PROBES = ((_ASKED, None), (_AGAIN, None), (_WITH_SYSTEM, None), (_ASKED, TOOLS), (ANSWERED, TOOLS))


def chat_renderer(
    tokenizer: Any,
    model_type: str,
    name: str | None,
    base_model: str,
    kwargs: Mapping[str, Any],
    stops: Sequence[int] = (),
) -> Renderer:
    """The renderer of a base model; `kwargs` of its chat template. `stops` end a turn beside those of the template.

    Raises `BaseModelError`.
    """
    if name is None:
        published = MODEL_RENDERER_MAP.get(getattr(tokenizer, "name_or_path", ""))
        name = "qwen3" if base_model in SCENARIOS else TEMPLATE if base_model == TOOL_CALLER else published
    if name is None and (found := _family_renderer(tokenizer, model_type, base_model, kwargs)):
        return found
    if name in (None, TEMPLATE) and not getattr(tokenizer, "chat_template", None):
        raise BaseModelError(
            f"the tokenizer of {base_model!r} has no chat template, and no exact renderer is known for the model",
            "Use an instruction-tuned model, or pass renderer='qwen3' (or another name of the `renderers` library).",
        )
    if name in (None, TEMPLATE):
        try:
            return TemplateRenderer(tokenizer, kwargs, stops)
        except ValueError as error:
            raise BaseModelError(
                f"the chat template of {base_model!r} cannot be used: {error}",
                "Pass renderer='qwen3' (or another name of the `renderers` library).",
            ) from error
    try:
        found = _named(tokenizer, name, kwargs)
        found.render_ids(_ASKED, add_generation_prompt=True)  # some find out only now that a tokenizer is not theirs
        return found
    except _UNFIT as error:
        raise BaseModelError(
            f"the chat renderer {name!r} does not suit {base_model!r}: {_told(error)}",
            f"Name another of the `renderers` library, such as qwen3, or pass renderer='{TEMPLATE}', the model's own.",
        ) from error


def _family_renderer(tokenizer: Any, model_type: str, base_model: str, kwargs: Mapping[str, Any]) -> Renderer | None:
    """The renderer of the architecture; None where there is none, or the model's template is another, which is told."""
    for name in (model_type, model_type.replace("_", "-"), model_type.replace("_", ".")):
        with contextlib.suppress(ValueError):
            config_from_name(name)
            break
    else:
        return None
    try:
        found = _named(tokenizer, name, kwargs)
        difference = _difference(found, tokenizer, kwargs)
        if difference is None:
            return found
    except _UNFIT as error:
        difference = f"it cannot be used: {_told(error)}"
    told = "%s does not use the chat renderer %s of its family, but its own template: %s"
    _LOG.warning(told, base_model, name, difference)
    return None


def _told(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _named(tokenizer: Any, name: str, kwargs: Mapping[str, Any]) -> Renderer:
    config: Any = config_from_name(name)
    fields = type(config).model_fields
    if unread := [each for each in kwargs if each not in fields]:
        known = [field for field in fields if field != "name"]
        raise ValueError(f"it takes no {unread[0]} of chat_template_kwargs, but {', '.join(known)}")
    try:
        chosen = type(config).model_validate({**config.model_dump(), **kwargs})
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(
            f"chat_template_kwargs: {'.'.join(map(str, first['loc']))}={first['input']!r}: {first['msg']}"
        ) from error
    return create_renderer(tokenizer, chosen)


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
        raise ChatFormatError(_told(error)) from error


def _difference(renderer: Renderer, tokenizer: Any, kwargs: Mapping[str, Any]) -> str | None:
    """Describes how a renderer's tokens differ from those of the tokenizer's template, over the probes that it
    supports.

    Returns None if they are equal, or if there is no template. Raises what the renderer raises.
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
