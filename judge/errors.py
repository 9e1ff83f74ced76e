"""What can go wrong with a judge, in a form that tells what to do about it."""

from scenarios.errors import GavelError


class JudgeError(GavelError):
    """A judge could not be asked, or what it said could not be used."""


class MissingKeyError(JudgeError):
    """The judge model's API key is not set."""
