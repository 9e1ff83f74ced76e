"""What the endpoint refuses, and how its answer says so: the status, and an error object as OpenAI's API makes it."""

import logging
from typing import Any

from gavel.base.errors import GavelError
from gavel.trainer.engines.grammar import GrammarError
from gavel.trainer.engines.protocol import ContextOverflow, EngineError

logger = logging.getLogger(__name__)

CLIENT_GONE = 499
"""The status by which web servers log a client that closed the connection."""


_SHOWN = 200
"""Characters."""


class EndpointError(GavelError):
    """The endpoint cannot be started."""


class BadRequest(GavelError):
    """A request that cannot be served as asked."""


class UnknownModel(BadRequest):
    """A model, or a step of it, that is not served."""

    def __init__(self, name: str, served: list[str]) -> None:
        super().__init__(
            f"the model {name!r} is not served here; live: {', '.join(served)}",
            "Ask model.get_inference_name() for each rollout.",
        )


class TooLarge(BadRequest):
    """A body with more bytes than are read."""


class Unthreaded(BadRequest):
    """A thread of Anthropic's API, which its clients go on without when they are told so."""

    def __init__(self) -> None:
        self.details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        super().__init__("thread is not supported here", "Send the whole conversation as messages.")


class ClientGone(Exception):
    """The client closed the connection."""


class Closing(Exception):
    """The server closes while a request is answered."""


_CODES = {
    ContextOverflow: "context_length_exceeded",
    UnknownModel: "model_not_found",
    GrammarError: "invalid_json_schema",
}
"""As OpenAI's API calls them."""
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
ANSWERED = (BadRequest, EngineError, ClientGone, Closing, *_UNREADABLE)
"""What a request may raise and is answered with `error_answer`."""


def error_answer(error: BaseException) -> tuple[int, dict[str, Any]]:
    """The status and the body that tell a client of one of `ANSWERED`; raises any other."""
    match error:
        case TooLarge():
            return 413, error_body(str(error), "request_too_large")
        case Unthreaded():
            body = error_body(str(error), "invalid_request")
            return 400, {"error": body["error"] | {"details": error.details}}
        case BadRequest() | ContextOverflow() | GrammarError():
            return 400, error_body(str(error), _CODES.get(type(error), "invalid_request"))
        case RecursionError():
            told = "the request is nested too deeply\nSend a flatter one."
            return 400, error_body(told, "invalid_request")
        case KeyError() | TypeError() | ValueError() | AttributeError():
            logger.warning("a request could not be read", exc_info=error)
            told = (
                f"the request cannot be read: {type(error).__name__}: {error}\nThe log of the endpoint has the place."
            )
            return 400, error_body(told, "invalid_request")
        case ClientGone():
            return CLIENT_GONE, error_body("the client closed the connection", "client_gone")
        case EngineError():
            return 503, error_body(str(error), "engine_stopped", "server_error")
        case Closing():
            return 503, error_body("the endpoint is closing", "closing", "server_error")
        case _:
            raise error


def error_body(message: str, code: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def shown(value: object) -> str:
    """A value of a request, as a message repeats it: its beginning, if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
