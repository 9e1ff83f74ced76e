"""Removes this process's keys from foreign text: servers quote requests in their errors."""

import os
import re
from collections.abc import Mapping

HIDDEN = "…hidden…"
_NAMES = re.compile(r"(^|_)(KEY|KEY_ID|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$")
_LEAST_CHARACTERS = 8
"""Minimum length of a hidden value, in characters; a shorter one, such as `none`, occurs in ordinary words."""
_KEYS = re.compile(r"\b(?:sk|pk|rk|gsk|xai|nvapi|hf|gh[pousr])[-_][A-Za-z0-9_-]{12,}")

_USER = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_SIGNATURE = re.compile(r"([?&](?:X-Amz-)?(?:Signature|Credential|Security-Token|sig)=)[^&\s'\"]+", re.IGNORECASE)
"""Signature parameters of a presigned URL, which grants access to whoever has it."""


def without_secrets(words: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text without likely keys, without the user and the signature of a URL, and without the values of environment
    variables that are named like keys."""
    values = {value for name, value in environment.items() if _NAMES.search(name.upper())}
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _LEAST_CHARACTERS:
            words = words.replace(value, HIDDEN)
    words = _SIGNATURE.sub(rf"\1{HIDDEN}", _USER.sub(HIDDEN, words))
    return _KEYS.sub(HIDDEN, words)


def hide_secrets(error: BaseException) -> None:
    """Removes secrets from an error and its causes, since a traceback shows them all."""
    seen: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in seen:
        seen.append(at)
        at.args = tuple(without_secrets(each) if isinstance(each, str) else each for each in at.args)
        at = at.__cause__ or at.__context__
