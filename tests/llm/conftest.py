"""Both ways to a server of the user's own: the same answers and the same errors come of either."""

import pytest

import gavel.judge.offline  # noqa: F401  registers the local judges
from gavel.llm.completion import DIRECT_WIRE
from gavel.llm.providers import load_litellm


@pytest.fixture(params=["direct", "LiteLLM"])
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    load_litellm()  # it takes seconds, of which a call's deadline may have less
    monkeypatch.setenv(DIRECT_WIRE, "1" if request.param == "direct" else "0")
    return request.param
