"""The name of ART's serverless backend: it stops with one sentence."""

from typing import Any

from gavel.compat.art.errors import NotInGavelError


class ServerlessBackend:
    """Cannot be made."""

    def __init__(self, *args: Any, **options: Any) -> None:
        raise NotInGavelError(
            "Gavel trains on your own machines, not on ART's serverless backend",
            "Put LocalBackend() of gavel.compat.art.local in its place; larger models need a GPU.",
        )
