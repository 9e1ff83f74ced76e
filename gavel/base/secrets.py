"""Text of others without the keys of this process: servers repeat in their errors what they were asked with."""

import os
import re
from collections.abc import Mapping

HIDDEN = "…hidden…"
_NAMES = re.compile(r"(^|_)(KEY|KEY_ID|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$")
_LEAST_CHARACTERS = 8
"""Of a value that is hidden: a shorter one, such as `none`, is found in other words."""
_KEYS = re.compile(r"\b(?:sk|pk|rk|gsk|xai|nvapi|hf|gh[pousr])[-_][A-Za-z0-9_-]{12,}")

_USER = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_SIGNATURE = re.compile(r"([?&](?:X-Amz-)?(?:Signature|Credential|Security-Token|sig)=)[^&\s'\"]+", re.IGNORECASE)
"""Of an address that opens a file to whoever has it."""


def without_secrets(words: str, environment: Mapping[str, str] = os.environ) -> str:
    """The words without what looks like a key, the user and the signature of an address, and the values of variables
    that are named as keys are."""
    values = {value for name, value in environment.items() if _NAMES.search(name.upper())}
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _LEAST_CHARACTERS:
            words = words.replace(value, HIDDEN)
    words = _SIGNATURE.sub(rf"\1{HIDDEN}", _USER.sub(HIDDEN, words))
    return _KEYS.sub(HIDDEN, words)


def hide_secrets(error: BaseException) -> None:
    """Takes them out of the words of an error, and of those that led to it: a traceback shows them all."""
    seen: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in seen:
        seen.append(at)
        at.args = tuple(without_secrets(each) if isinstance(each, str) else each for each in at.args)
        at = at.__cause__ or at.__context__
