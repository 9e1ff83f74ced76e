"""Chance of one world that draws from the process's own generators, `random` and `numpy.random`.

    chance = OwnChance(seed)
    with chance: world.step(action)         # draws what it would draw alone, whatever other worlds do in between

One world at a time is within its chance; the process's own numbers go on afterwards as if nothing had been drawn.
"""

import random
import sys
import threading
from typing import Any, Self

_ONE_AT_A_TIME = threading.Lock()
_WAIT_SECONDS = 60.0
"""For a world that computes; one that hangs would hold all others."""


class OwnChance:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._python: Any = random.Random(seed).getstate()
        self._numpy: Any = None
        self._outer: tuple[Any, Any] | None = None

    def __enter__(self) -> Self:
        if not _ONE_AT_A_TIME.acquire(timeout=_WAIT_SECONDS):
            raise TimeoutError(f"another world did not come to an end within {_WAIT_SECONDS:g} s")
        numpy: Any = sys.modules.get("numpy")
        self._outer = random.getstate(), None if numpy is None else numpy.random.get_state()
        random.setstate(self._python)
        if numpy is not None:
            if self._numpy is None:
                self._numpy = numpy.random.RandomState(self._seed % 2**32).get_state()
            numpy.random.set_state(self._numpy)
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            numpy: Any = sys.modules.get("numpy")
            assert self._outer is not None
            python, outer = self._outer
            self._python = random.getstate()
            random.setstate(python)
            if numpy is not None and outer is not None:
                self._numpy = numpy.random.get_state()
                numpy.random.set_state(outer)
        finally:
            _ONE_AT_A_TIME.release()
