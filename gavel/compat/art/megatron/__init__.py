"""ART's `megatron`: its backend trains on this machine here."""

from gavel.compat.art.local.other_backends import MegatronBackend

__all__ = ["MegatronBackend"]
