"""Errors as values: they reach whoever waits for another process as they were raised."""

import importlib
import pickle
import pkgutil

import pytest

import gavel
from gavel.base.errors import GavelError


def every_kind() -> list[type[GavelError]]:
    for module in pkgutil.walk_packages(gavel.__path__, "gavel."):
        if module.name.rpartition(".")[2] in ("errors", "exchange", "prompt_cut"):
            importlib.import_module(module.name)
    found: list[type[GavelError]] = [GavelError]
    for kind in found:
        found += kind.__subclasses__()
    return found


@pytest.mark.parametrize("kind", every_kind(), ids=lambda kind: kind.__qualname__)
def test_an_error_of_every_kind_is_the_same_in_another_process(kind: type[GavelError]):
    error = kind.__new__(kind, "what")
    GavelError.__init__(error, "what", "what to do")
    error.__dict__["kind"] = "group-full"
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is kind
    assert (str(found), vars(found)) == (str(error), vars(error))
