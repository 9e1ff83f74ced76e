"""What the endpoint refuses, and how its answer says so: the status, and an error object as OpenAI's API makes it."""

import asyncio
from typing import Any

from gavel.llm.errors import GavelError
from gavel.trainer.engines.grammar import GrammarError
from gavel.trainer.engines.protocol import ContextOverflow, EngineError

CLIENT_GONE = 499
"""The status by which web servers log a client that closed the connection."""


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


class ClientGone(Exception):
    """The client closed the connection."""


_CODES = {
    ContextOverflow: "context_length_exceeded",
    UnknownModel: "model_not_found",
    GrammarError: "invalid_json_schema",
}
"""As OpenAI's API calls them."""
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
ANSWERED = (BadRequest, EngineError, ClientGone, asyncio.CancelledError, *_UNREADABLE)
"""What a request may raise and is answered with `error_answer`."""


def error_answer(error: BaseException) -> tuple[int, dict[str, Any]]:
    """The status and the body that tell a client of one of `ANSWERED`; raises any other."""
    match error:
        case BadRequest() | ContextOverflow() | GrammarError():
            return 400, error_body(str(error), _CODES.get(type(error), "invalid_request"))
        case RecursionError():
            return 400, error_body("the request is nested too deeply", "invalid_request")
        case KeyError():
            return 400, error_body(f"the request lacks the field {error}", "invalid_request")
        case TypeError() | ValueError() | AttributeError():
            told = f"the request cannot be read: {type(error).__name__}: {error}"
            return 400, error_body(told, "invalid_request")
        case ClientGone():
            return CLIENT_GONE, error_body("the client closed the connection", "client_gone")
        case EngineError():
            return 503, error_body(str(error), "engine_stopped", "server_error")
        case asyncio.CancelledError():  # only a server that is closing cancels its requests
            return 503, error_body("the endpoint is closing", "closing", "server_error")
        case _:
            raise error


def error_body(message: str, code: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
