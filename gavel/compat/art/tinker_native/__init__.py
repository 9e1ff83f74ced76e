"""ART's `tinker_native`: its backend trains on this machine here."""

from gavel.compat.art.local.other_backends import TinkerNativeBackend

__all__ = ["TinkerNativeBackend"]
