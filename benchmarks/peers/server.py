"""A loopback judge for the code of any scoring library: the simulated judge behind an OpenAI-compatible server.

The name of the model tells how to answer, "form--variant--mode": `form` is the reply format that the caller's prompt
asks for (`forms.py`), `mode` is "clean", "faulty" (a tenth of the requests fails, in one of `FAULTS`) or "scripted"
(a reply of `malformed.py` that the task names). The members shown and their order are read from the ids in the prompt.
A request for the same members in the same order has the same verdict, so another score has another cause.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import uvicorn
from engine_quality import SimulatedJudge
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from peers.forms import FORMS, Form
from peers.malformed import CASES, DRAFT, FILED, GOOD, Reply, filed_reply

FAILED = 0.1
FAULTS = ("server error", "rate limit", "refusal", "cut off", "empty")
CASE = re.compile(r"\bcase-(\w+)")


class JudgeServer:
    def __init__(self, judge: SimulatedJudge, count_tokens: Callable[[str], int]) -> None:
        self.judge = judge
        self.calls: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        """Prompt tokens by model, repeated requests included."""
        self._count = count_tokens
        self._asked: Counter[str] = Counter()

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        texts = [_text(message) for message in body["messages"]]
        user = "\n".join(text for text, sent in zip(texts, body["messages"], strict=True) if sent["role"] == "user")
        reply = self._answer(body["model"], texts, user, body)
        if isinstance(reply, Response):
            return reply
        if not reply.has_choices:
            return JSONResponse(_completion(body["model"], []))
        message = {"role": "assistant", **reply.message}
        choice = {"index": 0, "finish_reason": reply.finish_reason, "message": message}
        return JSONResponse(_completion(body["model"], [choice]))

    async def responses(self, request: Request) -> Response:
        """The Responses API, whose metadata holds the two texts (NeMo Gym's reward model)."""
        body = await request.json()
        model = request.path_params["model"]
        texts = [*(_text(message) for message in body["input"]), *body["metadata"].values()]
        reply = self._answer(model, texts, "\n".join(texts), body)
        if isinstance(reply, Response):
            return reply
        text = reply.message.get("content")
        content = [{"type": "output_text", "text": text, "annotations": []}] if isinstance(text, str) else []
        item = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
        output = [item] if reply.has_choices else []
        return JSONResponse({"id": "r", "object": "response", "created_at": 1, "model": model, "output": output})

    def _answer(self, model: str, texts: list[str], prompt: str, body: Mapping[str, Any]) -> Reply | Response:
        form_name, _, mode = model.split("--")
        self.calls[model] += 1
        self.tokens[model] += sum(map(self._count, texts))
        form = FORMS[form_name]
        shown = form.shown(prompt)
        if not shown:  # a request that shows no member, such as a library's test call
            return Reply({"content": "test"})
        question = f"{form_name}/{shown}/{body.get('seed')}"
        request = f"{model}/{question}"
        self._asked[request] += 1
        if mode == "scripted":
            return self._scripted(form, prompt, shown)
        scores = self.judge.mean_scores(shown, [range(len(shown))], f"{shown}/{body.get('seed')}")
        text = form.write(scores, prompt, Random(question))
        chance = Random(f"{request}/{self._asked[request]}")
        if mode == "faulty" and chance.random() < FAILED:
            return _fault(chance.choice(FAULTS), text)
        return Reply({"content": text})

    def _scripted(self, form: Form, prompt: str, shown: list[str]) -> Reply | Response:
        found = CASE.search(prompt)
        assert found, "a scripted prompt names its case"

        def write(scores: Mapping[str, float]) -> str:
            return form.write([scores[name] for name in shown], prompt, Random(0))

        if found[1] in FILED:
            assert form.labels, "a filed reply needs labels"
            given = {text[-1].upper(): label for text, label in zip(shown, form.labels(prompt, shown), strict=True)}
            return filed_reply(found[1], given)
        reply = CASES[found[1]].reply(write(GOOD), write(DRAFT))
        return JSONResponse({"error": reply.error}) if reply.error else reply


def _fault(kind: str, text: str) -> Reply | Response:
    match kind:
        case "server error":
            return JSONResponse({"error": {"message": "internal error", "type": "server_error"}}, 500)
        case "rate limit":
            error = {"message": "rate limit reached", "type": "rate_limit_error", "code": "rate_limit_exceeded"}
            return JSONResponse({"error": error}, 429, headers={"retry-after": "0"})
        case "refusal":
            return Reply({"content": "I'm sorry, but I can't help with that."})
        case "cut off":
            return Reply({"content": text[: len(text) // 2]}, "length")
        case _:
            return Reply({"content": ""})


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content or [])


def _completion(model: str, choices: list[Any]) -> dict[str, Any]:
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": model, "choices": choices, "usage": usage}


@asynccontextmanager
async def serving(server: JudgeServer) -> AsyncIterator[str]:
    """The address without a path."""
    routes = [
        Route("/v1/chat/completions", server.chat, methods=["POST"]),
        Route("/{model}/v1/responses", server.responses, methods=["POST"]),
    ]
    config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=0, log_level="error")
    listening = uvicorn.Server(config)
    task = asyncio.create_task(listening.serve())
    while not listening.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.servers[0].sockets[0].getsockname()[1]}"
    finally:
        listening.should_exit = True
        await task
