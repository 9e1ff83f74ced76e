"""Values that a cluster is given and nobody else may read: in no log, exception, file of settings or command line."""

import os
from collections.abc import Iterable, Mapping
from typing import cast

from gavel.trainer.backends.remote.wire import KEY_VARIABLE
from gavel.trainer.backends.skypilot.errors import ClusterError

_SHORTEST = 6
"""Characters of a value that is blotted out; shorter ones are parts of words."""


def secret_values(secrets: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    """By name. Names alone are of environment variables here. Raises `ClusterError` for one that is not set."""
    if isinstance(secrets, str):
        raise ClusterError("secrets is one string", 'Give a list of names: secrets=["HF_TOKEN"]')
    values = {name: os.environ.get(name, "") for name in secrets}
    if isinstance(secrets, Mapping):
        values = dict(cast("Mapping[str, str]", secrets))
    for name, value in values.items():
        if not name.isidentifier():
            raise ClusterError(
                "a secret is not named like an environment variable", "Give names such as HF_TOKEN, not values."
            )
        if name == KEY_VARIABLE:
            raise ClusterError(f"{KEY_VARIABLE} is made for the cluster", "Leave it out of the secrets.")
        if not value:
            raise ClusterError(f"the secret {name} is not set here", f"Set the environment variable {name}.")
    return values


def redacted(text: str, values: Iterable[str]) -> str:
    """The text with stars for every secret value."""
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, "***")
    return text
