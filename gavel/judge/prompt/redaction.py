"""Redaction: keys, e-mail addresses and card numbers leave no trace in what a judge is sent.

    redact_secrets("Mail bob@example.com, key sk-proj-4f…")   ->  "Mail [e-mail address], key [OpenAI key]"

The patterns are in `redaction_patterns.toml`. A text is searched for a pattern only where one of its stems occurs.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gavel.judge.errors import JudgeError
from gavel.judge.prompt.shown_content import Redact


@dataclass(frozen=True, slots=True)
class _Secret:
    name: str
    """What replaces it, in brackets."""
    stems: tuple[str, ...]
    """In lower case; every match contains one. Without any, the pattern is always tried."""
    pattern: re.Pattern[str]
    """Its group `secret` is replaced, or without one the whole match."""
    is_card: bool = False
    """Whether a match only begins like a card number."""


@cache
def _secrets() -> tuple[_Secret, ...]:
    source = files("gavel.judge.prompt").joinpath("redaction_patterns.toml").read_text(encoding="utf-8")
    return tuple(
        _Secret(
            entry["name"], tuple(entry.get("stems", ())), re.compile(entry["pattern"]), entry.get("check") == "luhn"
        )
        for entry in tomllib.loads(source)["secret"]
    )


def redact_secrets(text: str) -> str:
    """The text with each secret replaced by its kind in brackets."""
    lower = text.lower()
    for secret in _secrets():
        if not secret.stems or any(stem in lower for stem in secret.stems):
            text = secret.pattern.sub(lambda found, secret=secret: _replacement(found, secret), text)
    return text


def _replacement(found: re.Match[str], secret: _Secret) -> str:
    if secret.is_card:
        end = _end_of_card_number(found[0])
        return f"[{secret.name}]{found[0][end:]}" if end else found[0]
    if "secret" not in secret.pattern.groupindex:
        return f"[{secret.name}]"
    start, end = found.span("secret")
    return f"{found[0][: start - found.start()]}[{secret.name}]{found[0][end - found.start() :]}"


_LENGTHS = {"34": (15,), "37": (15,), "30": (14,), "36": (14,), "38": (14,), "4": (16, 19, 13), "5": (16,), "2": (16,)}
"""Digits of a card number by its first ones; all others have 16 to 19."""


def _end_of_card_number(text: str) -> int:
    """Where the card number ends with which the text begins, and which other digits may follow; 0 = there is none."""
    ends = [place for place, character in enumerate(text, start=1) if character.isdigit()]
    for length in _LENGTHS.get(text[:2]) or _LENGTHS.get(text[0]) or (16, 19, 18, 17):
        if (
            len(ends) >= length
            and not text[ends[length - 1] :][:1].isdigit()
            and _has_check_digit(text[: ends[length - 1]])
        ):
            return ends[length - 1]
    return 0


def _has_check_digit(number: str) -> bool:
    """Whether the digits satisfy Luhn's formula."""
    digits = [int(character) for character in reversed(number) if character.isdigit()]
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def redaction(option: str | Redact | None) -> Redact | None:
    """The function that an option `redact` names. Raises `JudgeError` for an unknown name."""
    if option is None or not isinstance(option, str):
        return option
    if option == "secrets":
        return redact_secrets
    raise JudgeError(f"there is no redaction {option!r}.", 'Give "secrets", or a function of a text that returns one.')
