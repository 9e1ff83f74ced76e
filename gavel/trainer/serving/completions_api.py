"""`POST /v1/completions` and `/generate`: text in, text out, without a chat template.

A choice carries `token_ids`, `prompt_token_ids`, `token_logprobs`, `policy_version` and `temperature`. In a capture it
is a turn that answers its prompt, and continues no other.

`POST /generate` and `GET /health` are those of vLLM's native server, through which Atropos' managed servers of the type
`vllm` sample: token ids in, token ids and log-probs of the live policy out.
"""

import itertools
import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gavel.llm.types import Message
from gavel.trainer.serving.answers import BadRequest, event, json_answer, object_of, streamed_answer
from gavel.trainer.serving.chat import MAX_TEXTS, ChatCompletions
from gavel.trainer.serving.chat_request import check_characters, switch

_DEFAULT_MAX_TOKENS = 16
"""The default of OpenAI's API and of vLLM."""
_HARMLESS = {"echo": (None, False), "suffix": (None, ""), "best_of": (None, 1)}
_OF_GENERATE = {"prompt", "logprobs", "stream", "model", "prompt_logprobs"}
_OWN = {"prompt", "stream", "stream_options", *_HARMLESS}


class CompletionsApi:
    """The routes."""

    def __init__(self, chat: ChatCompletions) -> None:
        self._chat = chat
        self.routes = [
            Route("/v1/completions", self._create, methods=["POST"]),
            Route("/generate", self._generate, methods=["POST"]),
            Route("/health", self._health),
        ]

    async def _create(self, request: Request) -> Response:
        body: Message = await object_of(request)
        prompts = self._prompts(body.get("prompt"))
        _check(body)
        if switch(body, "stream"):
            return await streamed_answer(request, self._events(body, prompts))
        return await json_answer(request, self._completion(body, prompts))

    async def _events(self, body: Message, prompts: list[list[int]]) -> AsyncGenerator[bytes, None]:
        """The whole text at once."""
        yield event(await self._completion(body, prompts))
        yield event("[DONE]")

    async def _completion(self, body: Message, prompts: list[list[int]]) -> Message:
        asked = {name: value for name, value in body.items() if name not in _OWN}
        if body.get("max_tokens") is None:
            asked["max_tokens"] = _DEFAULT_MAX_TOKENS
        chosen = await self._chat.complete_text(asked, prompts)
        choices = [_choice(index, choice, body) for index, choice in enumerate(chosen)]
        read, said = sum(map(len, prompts)), sum(len(choice["token_ids"]) for choice in chosen)
        return {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": body["model"],
            "choices": choices,
            "usage": {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said},
        }

    def _prompts(self, given: Any) -> list[list[int]]:
        """Prompt token ids of a text, or of a list of texts."""
        texts: list[Any] = given if isinstance(given, list) else [given]
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise BadRequest("prompt is empty, or no text", "Give a text or a list of texts; token ids are not taken.")
        if len(texts) > MAX_TEXTS:
            raise BadRequest(f"there are {len(texts)} prompts, more than {MAX_TEXTS}", "Send them in several requests.")
        check_characters(texts)
        return [self._chat.policy.encode(text) for text in texts]

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _generate(self, request: Request) -> Response:
        body: Message = await object_of(request)
        prompt = self._ids(body["prompt"])
        for name in ("stream", "prompt_logprobs"):
            if body.get(name):
                raise BadRequest(f"{name}={body[name]!r} is not supported here", f"Leave {name} out.")
        if body.get("logprobs"):
            raise BadRequest("logprobs above 0 are not supported here", "Ask for logprobs=0: the sampled token's.")
        return await json_answer(request, self._generate_text(body, prompt))

    async def _generate_text(self, body: Message, prompt: list[int]) -> Message:
        asked = {name: value for name, value in body.items() if name not in _OF_GENERATE}
        asked = {"max_tokens": _DEFAULT_MAX_TOKENS, **asked, "model": self._chat.names[0]}
        choices = await self._chat.complete_text(asked, [prompt])
        return {
            "text": [choice["message"]["content"] for choice in choices],
            "prompt": body["prompt"],
            "token_ids": [choice["token_ids"] for choice in choices],
            "finish_reasons": [choice["finish_reason"] for choice in choices],
            "logprobs": [
                [
                    [{str(token): value}]
                    for token, value in zip(choice["token_ids"], choice["token_logprobs"], strict=True)
                ]
                for choice in choices
            ],
        }

    def _ids(self, given: Any) -> list[int]:
        ids: Any = cast(Message, given).get("prompt_token_ids") if isinstance(given, dict) else given
        if isinstance(ids, str) and ids:
            return self._chat.policy.encode(ids)
        if isinstance(ids, list) and ids and all(type(each) is int and each >= 0 for each in cast("list[Any]", ids)):
            prompt, vocabulary = cast("list[int]", ids), self._chat.policy.vocabulary
            if max(prompt) >= vocabulary:  # it would stop the engine
                raise BadRequest(
                    f"prompt names the token {max(prompt)}, which the model does not have",
                    f"Its tokens are 0 to {vocabulary - 1}.",
                )
            return prompt
        raise BadRequest("prompt is neither a text nor token ids", 'Send {"prompt": {"prompt_token_ids": […]}}.')


def _check(body: Message) -> None:
    for name, values in _HARMLESS.items():
        if body.get(name) not in values:
            raise BadRequest(f"{name}={body[name]!r} is not supported here", f"Leave {name} out.")
    if body.get("tools") or body.get("messages"):
        raise BadRequest("a text completion takes neither messages nor tools", "Ask /v1/chat/completions.")


def _choice(index: int, choice: Message, body: Message) -> Message:
    """A chat choice as one of a text completion."""
    logprobs = None
    if body.get("logprobs") is not None:
        tokens = [text for text, _ in choice["tokens"]]
        logprobs = {
            "tokens": tokens,
            "token_logprobs": choice["token_logprobs"],
            "top_logprobs": [top for _, top in choice["tokens"]] if body["logprobs"] else None,
            "text_offset": list(itertools.accumulate(map(len, tokens[:-1]), initial=0)) if tokens else [],
        }
    kept = {name: value for name, value in choice.items() if name not in ("message", "tokens")}
    return kept | {"index": index, "text": choice["message"]["content"], "logprobs": logprobs}
