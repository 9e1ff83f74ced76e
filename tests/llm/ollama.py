"""A server on loopback that speaks as Ollama does: its own chat API, and the OpenAI-compatible one.

It reads as much of a prompt as its context holds, drops the middle without a word, and counts what it has read.
"""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gavel.judge.prompt.token_count import count_tokens

Request = dict[str, Any]


class Ollama:
    """`reply`: the text of its answer to the text that it has read."""

    def __init__(self, reply: Callable[[str], str], default_context: int = 4096, trained_context: int = 32_768) -> None:
        self.requests: list[Request] = []
        self.read: list[int] = []
        """Tokens of each prompt that it has read."""
        ollama = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/api/show":
                    info = {"general.architecture": "qwen3", "qwen3.context_length": trained_context}
                    return self._send({"model_info": info, "template": "{{ .Prompt }}", "capabilities": ["completion"]})
                ollama.requests.append(request)
                context = min(request.get("options", {}).get("num_ctx", default_context), trained_context)
                text = "\n".join(message["content"] for message in request["messages"])
                tokens = count_tokens(text)
                if tokens > context:
                    share = context / tokens
                    text = text[:16] + text[len(text) - int(len(text) * share) :]
                    tokens = context
                ollama.read.append(tokens)
                if self.path == "/api/chat":
                    message = {"role": "assistant", "content": reply(text)}
                    counts = {"prompt_eval_count": tokens, "eval_count": 20}
                    return self._send({"model": request["model"], "message": message, "done": True, **counts})
                message = {"role": "assistant", "content": reply(text)}
                usage = {"prompt_tokens": tokens, "completion_tokens": 20, "total_tokens": tokens + 20}
                choice = {"index": 0, "finish_reason": "stop", "message": message}
                body = {"id": "1", "object": "chat.completion", "created": 1, "model": request["model"]}
                return self._send({**body, "choices": [choice], "usage": usage})

            def _send(self, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
