"""How many members a framework makes of each prompt, as its user says it.

    group_size("n", 8)     8
    group_size("n", 1)     JudgeError: members are compared with each other

A wrong size would judge a group in parts, or wait for members that never come.
"""

from gavel.judge.errors import JudgeError


def group_size(name: str, value: object) -> int:
    """The size, also of its text; `name` is the option's. Raises `JudgeError` for no whole number of two or more."""
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or int(text) < 2:
        raise JudgeError(
            f"{name}={value!r} is no size of a group.",
            "Give how many attempts are made at each prompt: 2 or more, since they are compared with each other.",
        )
    return int(text)
