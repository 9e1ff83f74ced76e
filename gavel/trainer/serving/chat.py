"""Chat completions over any engine: a body in, a completion or the chunks of a stream out.

    completion = await chat.complete(body)             # a dict, as OpenAI's API gives it
    async for chunk in chat.stream(body): ...          # dicts, ditto

Every other API of the endpoint translates to and from these two. Each sampled turn is remembered as a turn of its
conversation, which then goes on from the very tokens. A policy that must call a tool and does not is asked again behind
the tokens that a call begins with: they are part of its prompt, so its log-probs stay those of what it was shown.
"""

import asyncio
import functools
import itertools
import json
import re
import secrets
from collections.abc import AsyncGenerator, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from renderers import Renderer

from gavel.base.errors import run_all
from gavel.llm.types import Message
from gavel.trainer.engines.protocol import BASE, AdapterGone, ContextOverflow, Engine, Grammar, Sampled, SamplingRequest
from gavel.trainer.policy.chat_format import ChatFormatError
from gavel.trainer.policy.policy import Policy
from gavel.trainer.serving.answers import BadRequest, unknown_model
from gavel.trainer.serving.capture import current_capture
from gavel.trainer.serving.chat_objects import (
    Chat,
    ChoiceChunks,
    choice_object,
    head_object,
    is_call,
    reply_message,
    usage_object,
)
from gavel.trainer.serving.chat_request import ChatRequest, check_characters, read_chat_request
from gavel.trainer.serving.turn_cache import ChatFormat, Prompt, TurnCache
from gavel.trainer.serving.turn_sampling import OnTurn, StopCheck, sample_turn

_ASKED: list[Any] = [{"role": "user", "content": "?"}]
_NAMES = ("alpha", "7_beta")
_ARGUMENTS = ("{}", '{"gamma": 2}')


def call_opening(renderer: Renderer, tools: list[Message], name: str | None) -> list[int]:
    """The tokens of a turn up to the called tool's name, or with it where `name` is given; none where a format has no
    such beginning."""
    probes = [(each, _ARGUMENTS[0]) for each in _NAMES] if name is None else [(name, each) for each in _ARGUMENTS]
    one, other = (_call_turn(renderer, tools, *probe) for probe in probes)
    shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return [token for token, _ in shared]


def force_call(chat: Chat) -> Chat:
    """The same behind the tokens that open a call. Raises `BadRequest`."""
    opening = call_opening(chat.form.renderer, chat.asked.offered or [], chat.asked.call)
    if not opening:
        raise BadRequest(
            "the policy called no tool, and its chat format has no beginning by which it could be made to",
            'Leave tool_choice at "auto".',
        )
    prompt_ids = [*chat.prompt.token_ids, *opening]
    rest = max(1, chat.request.max_tokens - len(opening))
    request = replace(chat.request, prompt_ids=prompt_ids, max_tokens=rest, grammar=None)
    return replace(chat, prompt=Prompt(prompt_ids, chat.prompt.continues), request=request, opening=tuple(opening))


def _call_turn(renderer: Renderer, tools: list[Message], name: str, arguments: str) -> list[int]:
    """The tokens of a turn that is this call; none where the format renders a turn otherwise than it is sampled."""
    schemas: Any = tools
    function = {"name": name, "arguments": arguments}
    call: Any = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    opening = list(renderer.render_ids(_ASKED, tools=schemas, add_generation_prompt=True))
    whole = list(renderer.render_ids([*_ASKED, call], tools=schemas))
    return whole[len(opening) :] if whole[: len(opening)] == opening else []


_MAY_CLOSE_A_CALL = re.compile(r"[>}\]|]")


def _ends(chat: Chat) -> Iterator[StopCheck]:
    """A turn ends with the token that completes a stop string or, where one call is allowed, that closes it."""
    if stop := chat.asked.stop:
        # Tokens that may hold one: each has a byte at least, and one more shows whether a character is complete.
        widest = max(len(text.encode()) for text in stop) + 1
        yield lambda token_ids: any(map(chat.decode(token_ids[-widest:]).__contains__, stop))
    if not chat.asked.parallel_tool_calls:
        yield (
            lambda token_ids: (
                _MAY_CLOSE_A_CALL.search(chat.decode(token_ids[-1:])) is not None
                and any(map(is_call, chat.parse(token_ids).tool_calls))
            )
        )


def without_end(token_ids: list[int], stop_ids: Container[int]) -> list[int]:
    """A turn without the token that ended it."""
    return token_ids[:-1] if token_ids and token_ids[-1] in stop_ids else token_ids


def without_stop(reply: Message, stop: Sequence[str]) -> Message:
    """The reply up to a stop string, which it does not show."""
    if not stop:
        return reply
    shown = {name: reply[name] for name in ("content", "reasoning_content") if name in reply}
    return reply | {name: min((text.partition(each)[0] for each in stop), key=len) for name, text in shown.items()}


_FORMATS = 64
"""Renderers that are kept, for arguments of the chat template that requests give."""
MAX_TEXTS = 1024
"""Completions of a request for texts."""
_LONGEST_TOKEN = 128
"""Characters."""
_SEED_STEP = 0x9E3779B97F4A7C15
"""Distance between the seeds of a request's turns."""


class ChatCompletions:
    """One model's chat completions, for any number of concurrent requests of one event loop."""

    def __init__(
        self, engine: Engine, policy: Policy, *, model: str, max_reply: int | None = None, base_model: str | None = None
    ) -> None:
        """`engine` samples what `policy` renders. `base_model`: the name without an adapter. `max_reply`: tokens of a
        reply whose request sets no limit; None: the rest of the context."""
        self._engine = engine
        self.policy = policy
        self._decode = policy.decode
        self._model = model
        self.max_context = engine.max_context
        self._max_reply = max_reply
        self._base = [base_model] if base_model not in (None, model) and engine.serves_base else []
        self.turn_cache = TurnCache(policy.renderer, policy.decode)
        self._formats = functools.lru_cache(_FORMATS)(self._chat_format)

    @property
    def names(self) -> list[str]:
        """The models that requests can name."""
        versions = [f"{self._model}@{version}" for version in self._engine.adapter_versions]
        return [self._model, *versions, *self._base]

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The completion. Raises one of `answers.ANSWERED`; cancelling it ends the sampling."""
        opened = self._open(body)
        turns = await self._turns([opened])
        choices: list[dict[str, Any]] = []
        for index, (chat, turn) in enumerate(turns):
            reply = self._reply(chat, turn)
            self._remember(chat, reply, turn)
            choices.append(choice_object(chat, index, reply, turn))
        usage = usage_object(opened.prompt, sum(len(turn.token_ids) for _, turn in turns))
        completion = head_object(self._name(turns[-1][1]), "chat.completion") | {"choices": choices, "usage": usage}
        if opened.asked.return_token_ids and not opened.asked.compact_logprobs:  # vLLM has them here
            completion["prompt_token_ids"] = opened.prompt.token_ids
        return completion

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of the completion as it is sampled; before the first one it raises as `complete` does. Closing it
        ends the sampling."""
        opened = self._open(body)
        news: asyncio.Queue[tuple[int, Sampled, Chat | None] | None] = asyncio.Queue()

        async def sample(index: int) -> None:
            chat, turn = await self._turn(opened, index, lambda turn: news.put_nowait((index, turn, None)))
            news.put_nowait((index, turn, chat))

        choices = [ChoiceChunks(opened, index) for index in range(opened.asked.n)]
        head: dict[str, Any] = {}
        going, tokens = len(choices), 0
        sampling = asyncio.create_task(run_all(map(sample, range(len(choices)))))
        sampling.add_done_callback(lambda _: news.put_nowait(None))
        try:
            while (told := await news.get()) is not None:
                index, turn, chat = told
                if not head:
                    head = head_object(self._name(turn), "chat.completion.chunk")
                    for each in choices:  # clients expect choices to begin in order
                        yield head | {"choices": [each.opening(turn)]}
                if chat is None:
                    choice = choices[index].more(turn)
                else:
                    going, tokens = going - 1, tokens + len(turn.token_ids)
                    reply = self._reply(chat, turn)
                    choice = choices[index].rest(reply, turn, chat)
                    self._remember(chat, reply, turn)
                if choice is not None:
                    yield head | {"choices": [choice]}
            await sampling
            if opened.asked.stream_options.include_usage:
                yield head | {"choices": [], "usage": usage_object(opened.prompt, tokens)}
        except (GeneratorExit, asyncio.CancelledError):
            _count_abandoned(going)
            raise
        finally:
            sampling.cancel()

    async def complete_text(self, body: Mapping[str, Any], prompts: Sequence[list[int]]) -> list[dict[str, Any]]:
        """Chat choices that continue prompts as they are; `body` says how they are sampled.

        `n` choices for each prompt, in order. Raises as `complete` does.
        """
        shown = {"compact_logprobs": True, "logprobs": None, "return_token_ids": True}
        opened: list[Chat] = []
        for prompt_ids in prompts:
            messages = [{"role": "user", "content": self._decode(prompt_ids)}]
            opened.append(self._open({**body, "messages": messages, **shown}, Prompt(prompt_ids, False)))
            if len(prompts) * opened[0].asked.n > MAX_TEXTS:
                raise BadRequest(
                    f"{len(prompts)} prompts with n={opened[0].asked.n} are more than {MAX_TEXTS} completions",
                    "Send them in several requests.",
                )
        choices: list[dict[str, Any]] = []
        for chat, turn in await self._turns(opened):
            text = self._decode(without_end(turn.token_ids, chat.form.stop_ids))
            reply = without_stop({"role": "assistant", "content": text}, chat.asked.stop)
            choice = choice_object(chat, len(choices), reply, turn)
            if capture := current_capture.get():
                capture.add(chat.asked.messages, None, choice)
            choices.append(choice)
        return choices

    def _open(self, body: Mapping[str, Any], prompt: Prompt | None = None) -> Chat:
        """`prompt`: in place of the rendered messages."""
        asked = read_chat_request(body, self.policy.vocabulary)
        version = self._version(asked.model)
        try:
            form = self._formats(json.dumps(asked.chat_template_kwargs, sort_keys=True))
        except ValueError as error:
            raise BadRequest(str(error), "Leave it out of chat_template_kwargs.") from error
        self._check_length(asked)
        try:
            prompt = prompt or self.turn_cache.prompt(asked.messages, asked.offered, form)
        except (TypeError, ValueError) as error:
            check_characters([asked.messages, asked.offered])
            if isinstance(error, ChatFormatError):
                raise BadRequest(str(error), "Send what it takes, or name another format: --renderer.") from error
            raise
        room = self.max_context - len(prompt.token_ids)
        if room <= 0:
            raise ContextOverflow(
                f"the prompt has {len(prompt.token_ids)} tokens, which leaves no room for a reply: the maximum context "
                f"length is {self.max_context} tokens",
                "Shorten the conversation, or raise max_context.",
            )
        request = SamplingRequest(
            prompt_ids=prompt.token_ids,
            stop_ids=form.stop_ids,
            max_tokens=min(asked.limit or self._max_reply or room, room),
            temperature=asked.temperature,
            seed=secrets.randbits(62) if asked.seed is None else asked.seed,
            adapter_version=version,
            shaping=asked.shaping,
            grammar=None if asked.response_format is None else self._grammar(asked.response_format, asked, form),
        )
        return Chat(asked, form, prompt, request, self._decode)

    def _check_length(self, asked: ChatRequest) -> None:
        """Raises `ContextOverflow` for what no tokenizer fits into the context, before one tries for minutes."""
        written = len(json.dumps([asked.messages, asked.offered], ensure_ascii=False))
        if written > self.max_context * _LONGEST_TOKEN:
            raise ContextOverflow(
                f"the prompt has {written:,} characters, which leaves no room for a reply: the maximum context length "
                f"is {self.max_context} tokens",
                "Shorten the conversation, or raise max_context.",
            )

    def _grammar(self, schema: str, asked: ChatRequest, form: ChatFormat) -> Grammar:
        if not asked.offered:
            return Grammar(schema)
        opening = call_opening(form.renderer, asked.offered, None)
        if not opening:
            raise BadRequest(
                "the chat format has no beginning by which a tool call is told from a reply of a response_format",
                "Leave out tools, or response_format.",
            )
        return Grammar(schema, tuple(opening))

    async def _turns(self, chats: Sequence[Chat]) -> list[tuple[Chat, Sampled]]:
        """The turns of requests, `n` for each, and what was asked for them; sampled concurrently."""
        try:
            return await run_all(self._turn(chat, index) for chat in chats for index in range(chat.asked.n))
        except asyncio.CancelledError:
            _count_abandoned(sum(chat.asked.n for chat in chats))
            raise

    async def _turn(self, opened: Chat, index: int, heard: OnTurn | None = None) -> tuple[Chat, Sampled]:
        """A turn, and what was asked for it; one that must call a tool and does not is sampled again, opening it."""
        request = replace(opened.request, seed=opened.request.seed + index * _SEED_STEP)
        chat = replace(opened, request=request, sample_id=secrets.token_hex(8))
        if not chat.asked.must_call:
            return chat, await self._sampled(chat, heard)
        turn = await self._sampled(chat)
        calls = [call for call in chat.parse(turn.token_ids).tool_calls if is_call(call)]
        if calls and all(chat.asked.call in (None, call.name) for call in calls):
            return chat, turn
        forced = force_call(chat)
        return forced, await self._sampled(forced)

    async def _sampled(self, chat: Chat, heard: OnTurn | None = None) -> Sampled:
        try:
            return await sample_turn(self._engine, chat.request, [*_ends(chat)], heard)
        except AdapterGone as error:  # replaced since the request came in
            raise unknown_model(chat.asked.model, self.names) from error

    def _reply(self, chat: Chat, turn: Sampled) -> Message:
        said = without_end([*chat.opening, *turn.token_ids], chat.request.stop_ids)
        reply = reply_message(chat.parse(turn.token_ids), said, self._decode, tools=chat.asked.offered is not None)
        if chat.asked.response_format is not None and not reply["content"] and "tool_calls" not in reply:
            reply["content"] = reply.pop("reasoning_content", "")  # JSON where a thought was expected
        return without_stop(reply, chat.asked.stop)

    def _remember(self, chat: Chat, reply: Message, turn: Sampled) -> None:
        asked = chat.asked
        self.turn_cache.sampled(asked.messages, asked.offered, reply, chat.prompt.token_ids, turn.token_ids, chat.form)
        if (capture := current_capture.get()) is not None:
            whole = asked.model_copy(update={"logprobs": True, "compact_logprobs": True, "return_token_ids": True})
            capture.add(asked.messages, asked.offered, choice_object(replace(chat, asked=whole), 0, reply, turn))

    def _name(self, turn: Sampled) -> str:
        return self._base[0] if turn.adapter_version == BASE else f"{self._model}@{turn.adapter_version}"

    def prompt_tokens(self, body: Mapping[str, Any]) -> int:
        """Tokens of the prompt of a request. Raises as `complete` does."""
        return len(self._open(body).prompt.token_ids)

    def _version(self, name: str) -> int | None:
        """The version of the adapter that a request names; None: the live one."""
        if name not in self.names:
            raise unknown_model(name, self.names)
        if name in self._base:
            return BASE
        step = name.removeprefix(self._model)
        return int(step[1:]) if step else None

    def _chat_format(self, arguments: str) -> ChatFormat:
        """Raises `ValueError` for arguments that the chat template does not read."""
        renderer = self.policy.rendering_by(json.loads(arguments))
        return ChatFormat(renderer, "" if renderer is self.policy.renderer else arguments)


def _count_abandoned(turns: int) -> None:
    capture = current_capture.get()
    if capture is not None:
        capture.abandoned += turns
