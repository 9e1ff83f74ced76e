"""What a deployment fails with."""

from gavel.base.errors import GavelError


class DeployError(GavelError):
    """A checkpoint cannot be deployed, or a deployment cannot be used or removed."""
