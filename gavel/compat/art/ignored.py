"""Settings of ART that have no effect here: each is named once in a process."""

import inspect
import warnings

_named: set[str] = set()


class IgnoredSetting(UserWarning):
    """A setting of ART that has no effect in Gavel."""


def ignored(setting: str, why: str) -> None:
    """Warns, the first time, that `setting` has no effect."""
    if setting not in _named:
        _named.add(setting)
        warnings.warn(f"{setting} has no effect in Gavel: {why}", IgnoredSetting, stacklevel=_levels_to_the_user())


def _levels_to_the_user() -> int:
    """From the caller of `warnings.warn` to the nearest line that is none of Gavel's."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and f"{frame.f_globals.get('__name__', '')}.".startswith("gavel."):
        frame, level = frame.f_back, level + 1
    return level  # this function's own frame stands for the one of what is outside
