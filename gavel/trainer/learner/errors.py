"""What a training step may raise."""

from gavel.base.errors import GavelError


class LearnerError(GavelError):
    """A training step failed; nothing was changed."""
