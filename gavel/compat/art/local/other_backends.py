"""ART's backends that train elsewhere or by other means: each is the local one here, and says so."""

from typing import Any

from gavel.compat.art.ignored import ignored
from gavel.compat.art.local.backend import LocalBackend

_OWN = frozenset({"in_process", "path", "engine"})


class OtherBackend(LocalBackend):
    """Trains and serves models on this machine, in place of what its name says."""

    def __init__(self, **settings: Any) -> None:
        kind = type(self).__name__
        ignored(f"{kind}()", "models train on this machine, as with LocalBackend()")
        for name in set(settings) - _OWN:
            ignored(f"{kind}({name}=…)", "it is a setting of that backend alone")
        super().__init__(**{name: value for name, value in settings.items() if name in _OWN})


class MegatronBackend(OtherBackend):
    pass


class TinkerBackend(OtherBackend):
    pass


class TinkerNativeBackend(OtherBackend):
    pass
