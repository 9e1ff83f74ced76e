"""What may go wrong with a cluster."""

from gavel.base.errors import GavelError


class ClusterError(GavelError):
    """A cluster cannot be started, reached or ended."""


class ServerEndedError(ClusterError):
    """A cluster is on, and its server's job has ended."""
