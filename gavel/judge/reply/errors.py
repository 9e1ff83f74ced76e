"""The error of a reply that cannot be used."""

from gavel.llm.errors import GavelError


class VerdictError(GavelError):
    """A judge's reply is invalid; the message names the problems and becomes part of the repair prompt."""
