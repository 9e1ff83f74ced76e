"""ART's backend in a cloud by SkyPilot: it stops with one sentence."""

from typing import Any

from gavel.compat.art.errors import NotInGavelError


class SkyPilotBackend:
    """Cannot be made."""

    def __init__(self, *args: Any, **options: Any) -> None:
        raise _refusal()

    @classmethod
    async def initialize_cluster(cls, *args: Any, **options: Any) -> "SkyPilotBackend":
        raise _refusal()


async def stop_server(*args: Any, **options: Any) -> None:
    """Stops with one sentence."""
    raise _refusal()


def _refusal() -> NotInGavelError:
    return NotInGavelError(
        "gavel.compat.art trains on this machine",
        "Run the script on the cluster, with LocalBackend(), or use gavel.SkyPilotBackend with the names of Gavel.",
    )
