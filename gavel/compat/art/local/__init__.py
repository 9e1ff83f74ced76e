"""`from gavel.compat.art.local import LocalBackend`."""

from gavel.compat.art.local.backend import LocalBackend

__all__ = ["LocalAPI", "LocalBackend"]

LocalAPI = LocalBackend
"""Its name in ART's first versions."""
