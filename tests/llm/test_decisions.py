from typing import Any

import pytest

from gavel.llm import decisions
from gavel.llm.client import Client
from gavel.llm.decisions import PROBE, decide
from gavel.llm.errors import LlmError
from tests.decisions import DecisionServer

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "Is it there?"}]}]


async def test_parts_of_a_message_are_sent_as_parts_of_the_input():
    server = DecisionServer("openai")
    server.shown = lambda body: ""  # type: ignore[method-assign]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    message = {"role": "user", "content": [*MESSAGES[0]["content"], image]}
    reply = await decide("openai/d", [message], PROBE, server.params, {}, 30)
    server.close()
    ((_, body, _),) = server.requests
    assert [part["type"] for part in body["input"][0]["content"]] == ["input_text", "input_image"]
    assert (reply.prompt_tokens, reply.served_by) == (900, "decider-1-2026")


async def test_a_part_that_cannot_be_shown_is_refused():
    with pytest.raises(LlmError, match="'audio'"):
        await decide("openai/d", [{"role": "user", "content": [{"type": "audio"}]}], PROBE, {}, {}, 30)


async def test_a_litellm_without_decisions_is_told_with_the_remedy(monkeypatch):
    monkeypatch.setattr(decisions, "load_litellm", lambda url=None: object())
    with pytest.raises(LlmError, match="cannot ask decision models") as error:
        await Client("openai/d", {"api_key": "none"}, wire="decisions").ask(list(MESSAGES), PROBE)
    assert "pip install" in error.value.remedy
