"""Errors of the service, each with its remedy. How they look over HTTP: problems.py."""

from gavel.llm.errors import GavelError


class ServiceError(GavelError):
    """The service cannot start, or cannot do what was asked."""


class DatabaseUnavailableError(ServiceError):
    """The database does not answer now; the same request may succeed later."""


class OverloadedError(ServiceError):
    """Too many groups wait already; the same request may succeed later."""


class InvalidRequestError(ServiceError):
    """The request cannot be judged as it is."""


class IdempotencyConflictError(ServiceError):
    """An idempotency key was used before with another request."""


class NotFoundError(ServiceError):
    """There is nothing of this name for this caller."""


class GroupConflictError(ServiceError):
    """A member does not fit into the group that it names."""


class GroupDiffersError(GroupConflictError):
    """The group was begun with other settings."""


class MemberDiffersError(GroupConflictError):
    """The group has a member of this id with other content."""


class GroupFullError(GroupConflictError):
    """All members of the group have arrived already."""


class GroupClosedError(GroupConflictError):
    """The group's deadline is over."""


class GroupTooLargeError(ServiceError):
    """The members of a group are larger together than one request may be."""
