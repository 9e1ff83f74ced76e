"""A server on loopback that speaks as Ollama does: its own chat API, and the OpenAI-compatible one."""

from collections.abc import Callable
from typing import Any

from gavel.judge.prompt.truncate import count_tokens
from tests.endpoint import says
from tests.fake_server import Answer, Call, FakeServer

Request = dict[str, Any]


class Ollama(FakeServer):
    def __init__(self, reply: Callable[[str], str], default_context: int = 4096, trained_context: int = 32_768) -> None:
        self.requests: list[Request] = []
        self.read: list[int] = []
        self._reply = reply
        self._default_context, self._trained_context = default_context, trained_context
        super().__init__()

    def respond(self, call: Call) -> Answer:
        if call.path == "/api/show":
            info = {"general.architecture": "qwen3", "qwen3.context_length": self._trained_context}
            return Answer({"model_info": info, "template": "{{ .Prompt }}", "capabilities": ["completion"]})
        request: Request = call.json
        self.requests.append(request)
        context = min(request.get("options", {}).get("num_ctx", self._default_context), self._trained_context)
        text = "\n".join(message["content"] for message in request["messages"])
        tokens = count_tokens(text)
        if tokens > context:
            share = context / tokens
            text = text[:16] + text[len(text) - int(len(text) * share) :]
            tokens = context
        self.read.append(tokens)
        said = self._reply(text)
        if call.path == "/api/chat":
            message = {"role": "assistant", "content": said}
            counts = {"prompt_eval_count": tokens, "eval_count": 20}
            return Answer({"model": request["model"], "message": message, "done": True, **counts})
        return says(said, {"prompt_tokens": tokens, "completion_tokens": 20, "total_tokens": tokens + 20})
