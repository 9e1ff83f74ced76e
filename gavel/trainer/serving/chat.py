"""Chat completions over any engine: a body in, a completion or the chunks of a stream out.

    completion = await chat.complete(body)             # a dict, as OpenAI's API gives it
    async for chunk in chat.stream(body): ...          # dicts, ditto

Every other API of the endpoint translates to and from these two. Each sampled turn is remembered as a turn of its
conversation, which then goes on from the very tokens.
"""

import asyncio
import json
import math
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from renderers import Renderer

from gavel.trainer.engines.protocol import AdapterGone, ContextOverflow, Engine, EngineError, Sampled, SamplingRequest
from gavel.trainer.serving.capture_book import current_capture
from gavel.trainer.serving.chat_objects import choice_object, chunks_of, completion_object, reply_message
from gavel.trainer.serving.chat_request import read_chat_request
from gavel.trainer.serving.errors import BadRequest, UnknownModel
from gavel.trainer.serving.turn_cache import ChatFormat, TurnCache

_DEFAULT_MAX_TOKENS = 1024
_FORMATS = 64
"""Renderers that are kept, for arguments of the chat template that requests give."""


class ChatCompletions:
    """One model's chat completions, for any number of concurrent requests of one event loop."""

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        decode: Callable[[Sequence[int]], str],
        *,
        model: str,
        max_context: int,
        rendering_by: Callable[[Mapping[str, Any]], Renderer] | None = None,
    ) -> None:
        """`decode` gives the text of token ids.

        `rendering_by` makes the renderer of a request's `chat_template_kwargs`, or raises ValueError.
        """
        self._engine = engine
        self._decode = decode
        self._model = model
        self._max_context = max_context
        self.turn_cache = TurnCache(renderer, decode)
        self._own_format = ChatFormat(renderer)
        self._rendering_by = rendering_by
        self._formats: OrderedDict[str, ChatFormat] = OrderedDict()
        """Those of requests with arguments of the chat template."""

    @property
    def names(self) -> list[str]:
        """The models that requests can name."""
        return [self._model, *(f"{self._model}@{version}" for version in self._engine.adapter_versions)]

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The completion. Raises one of `errors.ANSWERED`; cancelling it ends the sampling."""
        asked = read_chat_request(body)
        version = self._version(asked.model)
        chat = self._chat_format(asked.template_arguments)
        prompt = self.turn_cache.prompt(asked.messages, asked.tools, chat)
        room = self._max_context - len(prompt.token_ids)
        if room <= 0:
            raise ContextOverflow(
                f"the prompt has {len(prompt.token_ids)} tokens; the maximum context length is {self._max_context}"
            )
        sampling = SamplingRequest(
            prompt_ids=prompt.token_ids,
            stop_ids=chat.stop_ids,
            max_tokens=min(asked.max_tokens or _DEFAULT_MAX_TOKENS, room),
            temperature=asked.temperature,
            seed=secrets.randbits(62) if asked.seed is None else asked.seed,
            adapter_version=version,
        )
        try:
            sampled = _finite(await asyncio.wrap_future(self._engine.submit(sampling)))
        except AdapterGone as error:  # replaced since the request came in
            raise UnknownModel(asked.model, self.names) from error
        parsed = chat.renderer.parse_response(
            sampled.token_ids,
            tools=asked.tools,  # type: ignore[arg-type]
            prompt_ids=prompt.token_ids,
        )
        reply = reply_message(parsed)
        self.turn_cache.sampled(asked.messages, asked.tools, reply, prompt.token_ids, sampled.token_ids, chat)
        capture = current_capture.get()
        if capture is not None:
            whole = replace(asked, logprobs=True, compact=True, token_ids=True)
            captured = choice_object(whole, 0, reply, prompt, sampled, self._decode)
            capture.add(asked.messages, asked.tools, captured)
        choice = choice_object(asked, 0, reply, prompt, sampled, self._decode)
        model = f"{self._model}@{sampled.adapter_version}"
        return completion_object(asked, model, [choice], prompt, len(sampled.token_ids))

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of the completion; before the first one it raises as `complete` does. Closing it ends the
        sampling."""
        completion = await self.complete(body)
        for chunk in chunks_of(read_chat_request(body), completion):
            yield chunk

    def prompt_tokens(self, body: Mapping[str, Any]) -> int:
        """Tokens of the prompt of a request. Raises as `complete` does."""
        asked = read_chat_request(body)
        self._version(asked.model)
        return len(
            self.turn_cache.prompt(asked.messages, asked.tools, self._chat_format(asked.template_arguments)).token_ids
        )

    def _version(self, name: str) -> int | None:
        """Of the adapter that a request names; None: the live one."""
        if name not in self.names:
            raise UnknownModel(name, self.names)
        step = name.removeprefix(self._model)
        return int(step[1:]) if step else None

    def _chat_format(self, arguments: Any) -> ChatFormat:
        """Raises `BadRequest` for arguments that the chat template does not read."""
        if arguments is None or arguments == {}:
            return self._own_format
        if not isinstance(arguments, dict) or self._rendering_by is None:
            raise BadRequest(f"chat_template_kwargs={arguments!r} is not supported here", "Leave it out, or give {}.")
        given = cast("dict[str, Any]", arguments)
        key = json.dumps(given, sort_keys=True)
        known = self._formats.get(key)
        if known is None:
            try:
                renderer = self._rendering_by(given)
            except ValueError as error:
                raise BadRequest(str(error), "Leave it out of chat_template_kwargs.") from error
            known = self._own_format if renderer is self._own_format.renderer else ChatFormat(renderer, key)
            self._formats[key] = known
        self._formats.move_to_end(key)
        while len(self._formats) > _FORMATS:
            self._formats.popitem(last=False)
        return known


def _finite(sampled: Sampled) -> Sampled:
    if not all(map(math.isfinite, sampled.logprobs)):
        raise EngineError(
            "the engine gave a log-prob that is not a finite number, so its weights or its arithmetic overflow",
            "Go on from an earlier checkpoint with a smaller learning rate, or sample in a wider dtype.",
        )
    return sampled
