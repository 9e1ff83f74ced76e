"""Settings of ART that have no effect here: each is named once in a process."""

import warnings

_named: set[str] = set()


class IgnoredSetting(UserWarning):
    """A setting of ART that has no effect in Gavel."""


def ignored(setting: str, why: str) -> None:
    """Warns, the first time, that `setting` has no effect."""
    if setting not in _named:
        _named.add(setting)
        warnings.warn(f"{setting} has no effect in Gavel: {why}", IgnoredSetting, stacklevel=3)
