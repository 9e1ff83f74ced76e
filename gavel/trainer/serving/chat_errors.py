"""What a request to the endpoint is refused for, and the status and code by which a client is told."""

import asyncio
from dataclasses import dataclass

from gavel.llm.errors import GavelError
from gavel.trainer.engines.protocol import ContextOverflow, EngineError

_CLIENT_GONE = 499
"""The status by which web servers log a client that closed the connection."""


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


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as a client is told of it."""

    status: int
    message: str
    code: str


REFUSED = (
    BadRequest,
    EngineError,  # ContextOverflow is one
    KeyError,
    TypeError,
    ValueError,
    AttributeError,  # a list or a text where the protocol has an object
    ClientGone,
    asyncio.CancelledError,
)
"""What answering a request may raise."""
_CODES = {ContextOverflow: "context_length_exceeded", UnknownModel: "model_not_found"}
"""As OpenAI's API calls them."""


def refusal(error: BaseException) -> Refusal:
    """How a client is told of one of `REFUSED`."""
    match error:
        case BadRequest() | ContextOverflow():
            return Refusal(400, str(error), _CODES.get(type(error), "invalid_request"))
        case EngineError():
            return Refusal(503, str(error), "engine_stopped")
        case ClientGone():
            return Refusal(_CLIENT_GONE, "the client has gone", "client_gone")
        case asyncio.CancelledError():  # only a server that is closing cancels its requests
            return Refusal(503, "the endpoint is closing", "closing")
        case _:
            said = f"the request cannot be read: {type(error).__name__}: {error}"
            return Refusal(400, said, "invalid_request")
