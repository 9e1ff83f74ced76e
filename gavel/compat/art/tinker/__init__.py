"""ART's `tinker`: its backend trains on this machine here."""

from gavel.compat.art.local.other_backends import TinkerBackend

__all__ = ["TinkerBackend"]
