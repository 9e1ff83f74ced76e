"""Backends of ART that train by other means are the local one, and say so."""

import warnings

import pytest

from gavel.compat.art import ignored
from gavel.compat.art.local import LocalBackend
from gavel.compat.art.megatron import MegatronBackend
from gavel.compat.art.tinker import TinkerBackend
from gavel.compat.art.tinker_native import TinkerNativeBackend


@pytest.mark.parametrize("backend", [MegatronBackend, TinkerBackend, TinkerNativeBackend])
def test_what_it_cannot_do_is_named(backend: type[LocalBackend], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored, "_named", set[str]())
    with warnings.catch_warnings(record=True) as named:
        warnings.simplefilter("always")
        made = backend(path="here", tinker_api_key="k")  # type: ignore[call-arg]
    assert isinstance(made, LocalBackend)
    assert [str(warning.message).split(" has no effect")[0] for warning in named] == [
        f"{backend.__name__}()",
        f"{backend.__name__}(tinker_api_key=…)",
    ]
