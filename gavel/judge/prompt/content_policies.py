"""What is done with content that a judge cannot be shown, and with a group that leaves it nothing to compare."""

from typing import Any, Literal, TypeVar, get_args

from gavel.judge.errors import JudgeError

UnseenPolicy = Literal["unscored", "flag"]
"""A member with unseen content is unscored, or scored with the flag "unseen content"."""
ImagePolicy = Literal["auto", "send", "flag"]
"""Images are sent when LiteLLM knows that all judge models see them, always, or never (then they are unseen)."""
AlonePolicy = Literal["unscored", "scored"]
"""A group of one distinct attempt is unscored, or scored by itself."""

_Choice = TypeVar("_Choice")


def checked_choice(option: str, value: _Choice, choices: Any) -> _Choice:
    """The value. Raises `JudgeError` unless it is one of the choices."""
    if value not in get_args(choices):
        known = ", ".join(f'"{choice}"' for choice in get_args(choices))
        raise JudgeError(f"{option} is one of {known}, not {value!r}.")
    return value
