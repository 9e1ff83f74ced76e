"""What the stand-ins for hosts share: a key, and failures that a test asks for."""

from dataclasses import dataclass
from urllib.parse import unquote

from tests.fake_server import Answer, Call, FakeServer

KEY = "key-of-the-tests-that-is-secret"


@dataclass
class Failure:
    """Of the requests whose method and path contain `text`."""

    text: str
    status: int
    times: int
    message: str


class ScriptedHost(FakeServer):
    """Answers `answer`, but for the failures that are left."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[Failure] = []
        self.calls: list[str] = []
        """Method and path of every request."""

    def fail(self, text: str, status: int, *, times: int = 1, message: str = "asked for") -> None:
        self.failures.append(Failure(text, status, times, message))

    def count(self, text: str) -> int:
        """Requests whose method and path contain `text`."""
        return sum(text in call for call in self.calls)

    def respond(self, call: Call) -> Answer:
        line = f"{call.method} {unquote(call.path)}"
        self.calls.append(line)
        failure = next((each for each in self.failures if each.text in line and each.times), None)
        if failure is not None:
            failure.times -= 1
            return self.error(failure.status, failure.message)
        return self.answer(call)

    def error(self, status: int, message: str) -> Answer:
        """In the host's own form."""
        return Answer({"error": {"message": message}}, status, {"Retry-After": "0"} if status == 429 else {})

    def refuse(self, call: Call) -> Answer:
        """The answer to a wrong key, which it repeats."""
        return self.error(401, f"Incorrect API key provided: {call.headers.get('authorization')}")

    def is_authorized(self, call: Call) -> bool:
        return call.headers.get("authorization") == f"Bearer {KEY}"
