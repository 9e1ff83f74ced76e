"""`POST /v1/completions` and `/generate`: text in, text out, without a chat template.

A choice carries `token_ids`, `prompt_token_ids`, `token_logprobs`, `policy_version` and `temperature`. In a capture it
is a turn that answers its prompt, and continues no other.

`POST /generate` and `GET /health` are those of vLLM's native server, through which Atropos' managed servers of the type
`vllm` sample: token ids in, token ids and log-probs of the live policy out.
"""

import itertools
import uuid
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gavel.llm.types import Message
from gavel.trainer.serving.answers import event, json_answer, object_of
from gavel.trainer.serving.chat import MAX_TEXTS, ChatCompletions
from gavel.trainer.serving.chat_objects import head_object
from gavel.trainer.serving.chat_request import Given, Off, check_characters, check_tokens, read

_DEFAULT_MAX_TOKENS = 16
"""The default of OpenAI's API and of vLLM."""
_Text = Annotated[str, Field(min_length=1)]


class _Request(Given):
    """What else it has says how the text is sampled, as in chat completions."""

    model_config = ConfigDict(extra="allow")

    @property
    def sampling(self) -> Message:
        return {"max_tokens": _DEFAULT_MAX_TOKENS, **(self.model_extra or {})}


class _TextRequest(_Request):
    remedies: ClassVar = {
        "prompt": "Give a text or a list of texts; token ids are not taken.",
        "messages": "Ask /v1/chat/completions.",
        "tools": "Ask /v1/chat/completions.",
        "logprobs": "Ask for logprobs=1: the sampled token's.",
    }
    prompt: Annotated[
        list[_Text],
        BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
        Field(min_length=1, max_length=MAX_TEXTS),
    ]
    stream: bool = False
    stream_options: Any = None
    logprobs: Literal[0, 1] | None = None
    best_of: Literal[1] = 1
    echo: Off = None
    suffix: Off = None
    messages: Off = None
    tools: Off = None


class _GenerateRequest(_Request):
    remedies: ClassVar = {
        "prompt": 'Send {"prompt": {"prompt_token_ids": […]}}.',
        "logprobs": "Ask for logprobs=0: the sampled token's.",
    }
    prompt: Annotated[
        _Text | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)],
        BeforeValidator(lambda given: given.get("prompt_token_ids") if isinstance(given, dict) else given),
    ]
    model: Any = None
    logprobs: Off = None
    stream: Off = None
    prompt_logprobs: Off = None


def routes(chat: ChatCompletions) -> list[Route]:
    async def create(request: Request) -> Response:
        asked = read(_TextRequest, await object_of(request))
        check_characters(asked.prompt)
        return await json_answer(request, completion(asked), events if asked.stream else None)

    def events(made: Message) -> list[bytes]:
        return [event(made), event("[DONE]")]

    async def completion(asked: _TextRequest) -> Message:
        prompts = [chat.policy.encode(text) for text in asked.prompt]
        chosen = await chat.complete_text(asked.sampling, prompts)
        read, said = sum(map(len, prompts)), sum(len(choice["token_ids"]) for choice in chosen)
        return head_object(asked.sampling["model"], "text_completion") | {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "choices": [shown(asked, index, choice) for index, choice in enumerate(chosen)],
            "usage": {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said},
        }

    def shown(asked: _TextRequest, index: int, choice: Message) -> Message:
        """A chat choice as one of a text completion."""
        logprobs = None
        if asked.logprobs is not None:
            tokens = [chat.policy.decode([token]) for token in choice["token_ids"]]
            offsets = list(itertools.accumulate(map(len, tokens), initial=0))[: len(tokens)]
            logprobs = {"tokens": tokens, "token_logprobs": choice["token_logprobs"], "text_offset": offsets}
            logprobs["top_logprobs"] = None
        kept = {name: value for name, value in choice.items() if name != "message"}
        return kept | {"index": index, "text": choice["message"]["content"], "logprobs": logprobs}

    async def generate(request: Request) -> Response:
        body = await object_of(request)
        return await json_answer(request, generated(body, read(_GenerateRequest, body)))

    async def generated(body: Message, asked: _GenerateRequest) -> Message:
        prompt = chat.policy.encode(asked.prompt) if isinstance(asked.prompt, str) else asked.prompt
        check_tokens(prompt, "prompt", chat.policy.vocabulary)
        choices = await chat.complete_text(asked.sampling | {"model": chat.names[0]}, [prompt])
        return {
            "text": [choice["message"]["content"] for choice in choices],
            "prompt": body["prompt"],
            "token_ids": [choice["token_ids"] for choice in choices],
            "finish_reasons": [choice["finish_reason"] for choice in choices],
            "logprobs": [
                [[{str(token): value}] for token, value in zip(each["token_ids"], each["token_logprobs"], strict=True)]
                for each in choices
            ],
        }

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return [
        Route("/v1/completions", create, methods=["POST"]),
        Route("/generate", generate, methods=["POST"]),
        Route("/health", health),
    ]
