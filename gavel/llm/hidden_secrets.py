"""Text of others without the keys of this process: servers repeat in their errors what they were asked with."""

import os
import re
from collections.abc import Mapping

HIDDEN = "…hidden…"
_NAMES = re.compile(r"(^|_)(KEY|KEY_ID|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$")
_LEAST_CHARACTERS = 8
"""Of a value that is hidden: a shorter one, such as `none`, is found in other words."""
_KEYS = re.compile(r"\b(?:sk|pk|rk|gsk|xai|nvapi|hf|gh[pousr])[-_][A-Za-z0-9_-]{12,}")


def without_secrets(words: str, environment: Mapping[str, str] = os.environ) -> str:
    """The words without what looks like a key, and without the values of variables that are named as keys are."""
    values = {value for name, value in environment.items() if _NAMES.search(name.upper())}
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _LEAST_CHARACTERS:
            words = words.replace(value, HIDDEN)
    return _KEYS.sub(HIDDEN, words)
