"""The exceptions that ART's scripts catch, and the one by which the missing parts stop."""

from gavel.base.errors import GavelError


class ARTError(Exception):
    """An error with a status code, as ART's servers answer it."""

    def __init__(self, message: str, status_code: int) -> None:
        super().__init__(message)
        self.detail = message
        self.status_code = status_code


class ForbiddenBucketCreationError(ARTError):
    """A bucket that may not be made."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 403)


class UnsupportedLoRADeploymentProviderError(ARTError):
    """A provider that serves no adapters."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 400)


class UnsupportedBaseModelDeploymentError(ARTError):
    """A base model on which a provider serves no adapters."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 400)


class LoRADeploymentTimedOutError(ARTError):
    """A deployment that took too long."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 504)


class NotInGavelError(GavelError, NotImplementedError):
    """A part of ART that Gavel does not have."""


def absent(owner: object, name: str) -> AttributeError:
    """For an attribute that ART may have: an `AttributeError`, so that `hasattr` says no."""
    return AttributeError(
        f"{type(owner).__name__.partition('[')[0]}.{name} is not in gavel.compat.art; docs/art.md says what is"
    )
