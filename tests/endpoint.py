"""An OpenAI-compatible chat endpoint on loopback, with a script of what it answers."""

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.limits import HANG_SECONDS

Request = dict[str, Any]


@dataclass
class Answer:
    body: Any
    """Sent as JSON; bytes as they are."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    breaks_off: bool = False
    """Whether the connection is closed in the middle of the body."""
    drip: float = 0.0
    """Seconds between two bytes of the body."""


Step = Callable[[Request], Answer]


def labels_in(request: Request) -> list[str]:
    """The labels in a judge's prompt, in the order shown."""
    return re.findall(r"^¦\w+ trajectory (\w+)$", request["messages"][1]["content"], re.MULTILINE)


def says(content: Any, usage: dict[str, int] | None = None, **message: Any) -> Answer:
    """A completion with this content."""
    choices = [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content} | message},
    ]
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}
    if usage:
        body["usage"] = usage
    return Answer(body)


def scores(*values: float) -> Step:
    """A good verdict: these scores in the order shown (the last one for all others)."""

    def step(request: Request) -> Answer:
        labels = labels_in(request)
        filled = [*values, *([values[-1]] * len(labels))]
        entries = [
            {"trajectory_id": label, "explanation": f"about {label}", "score": score}
            for label, score in zip(labels, filled, strict=False)
        ]
        return says(
            json.dumps({"scores": entries}), {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        )

    return step


def fails(status: int, message: str = "no", **headers: str) -> Step:
    """An error in OpenAI's form; it may be tried again at once."""
    body = {"error": {"message": message, "type": "error", "code": status}}
    return lambda request: Answer(body, status, {"Retry-After": "0"} | headers)


class Endpoint:
    """Answers by the script, one step for each request; the last step goes on for ever."""

    def __init__(self) -> None:
        self.script: list[Step] = [scores(0.5)]
        self.requests: list[Request] = []
        self._closing = threading.Event()
        self._lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = endpoint._next(request)(request)
                data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if answer.drip:
                    endpoint._drip(self, data, answer.drip)
                elif answer.breaks_off:
                    self.wfile.write(data[: len(data) // 2])
                    self.close_connection = True
                else:
                    self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def params(self) -> dict[str, Any]:
        """What LiteLLM needs to reach this endpoint."""
        return {"api_base": f"http://127.0.0.1:{self._server.server_port}/v1", "api_key": "none"}

    def silence(self, request: Request) -> Answer:
        """A step that answers nothing before the endpoint closes."""
        self._closing.wait(HANG_SECONDS)
        return says("late")

    def _drip(self, handler: BaseHTTPRequestHandler, data: bytes, seconds: float) -> None:
        for byte in data:
            if self._closing.wait(seconds):
                return
            try:
                handler.wfile.write(bytes([byte]))
                handler.wfile.flush()
            except OSError:  # the client has gone
                return

    def _next(self, request: Request) -> Step:
        with self._lock:
            self.requests.append(request)
            return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
