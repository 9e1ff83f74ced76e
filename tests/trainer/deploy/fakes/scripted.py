"""What the stand-ins for hosts share: a key, and failures that a test asks for."""

from urllib.parse import unquote

from tests.fake_server import Answer, Call, FakeServer

KEY = "key-of-the-tests-that-is-secret"


class ScriptedHost(FakeServer):
    key = KEY
    names_errors = True
    """Whether an error is an object with a message."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[tuple[str, Answer]] = []
        self.made: list[str] = []

    def fail(self, text: str, status: int, *, times: int = 1, message: str = "asked for") -> None:
        """Answers so to the next `times` requests whose method and path contain `text`."""
        self.failures += [(text, self.error(status, message))] * times

    def respond(self, call: Call) -> Answer:
        line = f"{call.method} {unquote(call.path)}"
        failure = next((each for each in self.failures if each[0] in line), None)
        if failure is not None:
            self.failures.remove(failure)
            return failure[1]
        return self.answer(call)

    def error(self, status: int, message: str) -> Answer:
        said = {"message": message} if self.names_errors else message
        return Answer({"error": said}, status, {"Retry-After": "0"} if status == 429 else {})

    def refuse(self, call: Call) -> Answer:
        return self.error(401, f"Incorrect API key provided: {call.headers.get('authorization')}")

    def is_authorized(self, call: Call) -> bool:
        return call.headers.get("authorization") == f"Bearer {self.key}"
