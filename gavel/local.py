"""`from gavel.local import LocalBackend`: the place where code written for ART looks for it."""

from gavel.trainer.backends.local import LocalBackend

__all__ = ["LocalBackend"]
