"""Errors of the server, raised again on the client by the classes that they have there."""

from typing import NoReturn

from gavel.base.errors import GavelError
from gavel.trainer.backends.remote.wire import Fault


class RemoteError(GavelError):
    """Something failed on the server of a remote backend."""


class WrongKeyError(GavelError):
    """A request without the server's key."""


class ProtocolError(GavelError):
    """Client and server are of versions that do not understand each other."""


class WriterError(GavelError):
    """Another client has registered the model since."""


class StepError(GavelError):
    """The model is at another step than its client knows."""


class UnknownSettingsError(GavelError):
    """The client sends what this version of the server does not know."""


def raise_fault(fault: Fault) -> NoReturn:
    """Raises the error as the class of its name; as `RemoteError` where this process knows none, or none so simple."""
    kind = next((each for each in _all(GavelError) if each.__name__ == fault.type), None)
    if kind is None or kind.__init__ is not GavelError.__init__:
        raise RemoteError(fault.message, fault.remedy)
    raise kind(fault.message, fault.remedy)


def _all(kind: type[GavelError]) -> list[type[GavelError]]:
    return [each for child in kind.__subclasses__() for each in (child, *_all(child))]
