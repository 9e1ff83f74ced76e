"""An OpenAI-compatible chat endpoint on loopback, with a script of what it answers."""

import json
import math
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.fake_server import Answer, Call, FakeServer
from tests.limits import HANG_SECONDS

if TYPE_CHECKING:
    import pytest

Request = dict[str, Any]


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
    return lambda request: verdict(request, lambda _, position: values[min(position, len(values) - 1)], "about {}")


def verdict(request: Request, score: Callable[[str, int], float], explanation: str = "counted") -> Answer:
    """A verdict with the score of each attempt by its transcript and its position in the prompt.

    `explanation`: {} in it is the attempt's label.
    """
    entries: list[dict[str, Any]] = []
    for position, label in enumerate(labels_in(request)):
        shown = request["messages"][1]["content"].partition(f"trajectory {label}\n")[2]
        attempt = re.split(r"^¦\w+ (?:trajectory|end)", shown, flags=re.MULTILINE)[0]
        said = {"trajectory_id": label, "explanation": explanation.format(label)}
        entries.append(said | {"score": score(attempt, position)})
    return says(json.dumps({"scores": entries}), {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120})


def fails(status: int, message: str = "no", **headers: str) -> Step:
    """An error in OpenAI's form; it may be tried again at once."""
    body = {"error": {"message": message, "type": "error", "code": status}}
    return lambda request: Answer(body, status, {"Retry-After": "0"} | headers)


def limit_attempts(monkeypatch: "pytest.MonkeyPatch", most: int) -> None:
    """Lets a call ask so many times, without pauses; then the next pause is longer than any deadline."""
    monkeypatch.setattr("gavel.llm.rate_limits.pause", lambda error, attempt: 0.0 if attempt < most else math.inf)


class Endpoint(FakeServer):
    """Answers by the script, one step for each request; the last step goes on for ever."""

    def __init__(self) -> None:
        self.script: list[Step] = [scores(0.5)]
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        super().__init__()

    @property
    def params(self) -> dict[str, Any]:
        """What LiteLLM needs to reach this endpoint."""
        return {"api_base": f"{self.url}/v1", "api_key": "none"}

    def respond(self, call: Call) -> Answer:
        request = call.json if call.body else {}  # a GET has none
        with self._lock:
            self.requests.append(request)
            step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return step(request)

    def silence(self, request: Request) -> Answer:
        """A step that answers nothing before the endpoint closes."""
        self.closing.wait(HANG_SECONDS)
        return says("late")
