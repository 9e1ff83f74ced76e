"""`POST /generate` and `GET /health`, as vLLM's native server has them: token ids in, token ids and log-probs out.

    {"prompt": {"prompt_token_ids": [1, 2]}, "n": 2, "max_tokens": 8, "logprobs": 0}
    -> {"text": ["…", "…"], "finish_reasons": ["stop", "length"], "logprobs": [[[{"31": -0.2}], …], …]}

Atropos' managed servers of the type `vllm` sample through it. The live policy answers; a `prompt` may be a text too.
"""

from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gavel.llm.types import Message
from gavel.trainer.serving.chat import ChatCompletions
from gavel.trainer.serving.completions_api import Encode
from gavel.trainer.serving.errors import ANSWERED, BadRequest
from gavel.trainer.serving.sse import json_answer, object_of, refused

_DEFAULT_MAX_TOKENS = 16
"""As in vLLM."""
_OWN = {"prompt", "logprobs", "stream", "model", "prompt_logprobs"}


class GenerateApi:
    """The routes."""

    def __init__(self, chat: ChatCompletions, encode: Encode) -> None:
        """`encode` gives the tokens of a text."""
        self._chat = chat
        self._encode = encode
        self.routes = [
            Route("/generate", self._generate, methods=["POST"]),
            Route("/health", self._health),
        ]

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _generate(self, request: Request) -> Response:
        try:
            body: Message = await object_of(request)
            prompt = self._prompt(body["prompt"])
            for name in ("stream", "prompt_logprobs"):
                if body.get(name):
                    raise BadRequest(f"{name}={body[name]!r} is not supported here", f"Leave {name} out.")
            if body.get("logprobs"):
                raise BadRequest("logprobs above 0 are not supported here", "Ask for logprobs=0: the sampled token's.")
        except ANSWERED as error:
            return refused(error)
        return await json_answer(request, self._generated(body, prompt))

    async def _generated(self, body: Message, prompt: list[int]) -> Message:
        asked = {name: value for name, value in body.items() if name not in _OWN}
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

    def _prompt(self, given: Any) -> list[int]:
        ids: Any = cast(Message, given).get("prompt_token_ids") if isinstance(given, dict) else given
        if isinstance(ids, str) and ids:
            return self._encode(ids)
        if isinstance(ids, list) and ids and all(type(each) is int and each >= 0 for each in cast("list[Any]", ids)):
            prompt, vocabulary = cast("list[int]", ids), self._chat.vocabulary
            if vocabulary is not None and max(prompt) >= vocabulary:  # it would stop the engine
                raise BadRequest(
                    f"prompt names the token {max(prompt)}, which the model does not have",
                    f"Its tokens are 0 to {vocabulary - 1}.",
                )
            return prompt
        raise BadRequest("prompt is neither a text nor token ids", 'Send {"prompt": {"prompt_token_ids": […]}}.')
