"""ART's service of W&B, which Gavel does not train on."""

from gavel.compat.art.serverless.backend import ServerlessBackend

__all__ = ["ServerlessBackend"]
