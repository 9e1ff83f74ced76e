"""The judge `likelihood` in any command: its weights are loaded by its first question alone."""

import json

import pytest
from rich.console import Console

from gavel.cli import demo_session
from gavel.cli.demo import LIKELIHOOD
from gavel.cli.options import register_likelihood
from gavel.llm import providers


class Stub:
    def __init__(self, console: Console) -> None:
        self.judge = self
        providers.register(LIKELIHOOD, self.reply)

    def reply(self, messages: list[dict[str, str]]) -> str:
        return json.dumps({"scores": []})


def test_the_first_question_loads_the_frozen_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "_models", dict(providers._models))
    providers._models.pop(LIKELIHOOD, None)
    made: list[Stub] = []
    monkeypatch.setattr(demo_session, "FrozenBase", lambda console: made.append(Stub(console)) or made[-1])
    register_likelihood()
    assert not made
    for _ in range(2):
        assert providers.answer(LIKELIHOOD, []) == '{"scores": []}'
    register_likelihood()  # leaves the loaded one
    assert providers.answer(LIKELIHOOD, []) == '{"scores": []}'
    assert len(made) == 1
