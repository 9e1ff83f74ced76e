"""Whatever is sent, the answer is scores or a typed refusal, never an error of the server."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.judge.config import JudgeConfig
from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.schemas.bodies import ScoreRequest
from gavel.scenarios.truth import truth_of
from tests.judge.service.in_process import serving

Ask = Any

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
roles = st.sampled_from(["system", "user", "assistant", "tool", "developer", "function", "", "\ud800"])
fields = st.sampled_from(["content", "tool_calls", "function_call", "tool_call_id", "name", "refusal", "audio", "type"])
blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", "input_audio", "file", "tool_use", "tool_result", "thinking", "x"])},
    optional={"text": values, "image_url": values, "content": values, "input": values, "name": values, "file": values},
)
calls = st.fixed_dictionaries({}, optional={"id": values, "type": values, "function": values | blocks})
contents = values | st.lists(blocks, max_size=3) | st.lists(calls, max_size=2)
chat = st.builds(lambda role, rest: {"role": role, **rest}, roles, st.dictionaries(fields, contents, max_size=4))
trajectories = st.fixed_dictionaries(
    {"messages": st.lists(chat, max_size=4)},
    optional={"id": st.text(max_size=5), "tools": st.lists(values, max_size=2), "metadata": values},
)
requests = st.fixed_dictionaries(
    {"trajectories": st.lists(trajectories, max_size=3)},
    optional={"rubric": values, "criteria": values, "reference": values, "orders": st.integers(-1, 3), "mode": values},
)


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Sends a body to a service that runs during all tests here."""
    folder: Path = tmp_path_factory.mktemp("service")
    config = ServiceConfig(database=str(folder / "service.sqlite"), judge=JudgeConfig(models="constant"))
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        client: httpx.AsyncClient = runner.run(stack.enter_async_context(serving(config)))

        def send(body: Any) -> httpx.Response:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            return runner.run(client.post("/v1/score", content=content))

        yield send
        runner.run(stack.aclose())


@given(body=requests)
@settings(max_examples=60)
def test_a_request_of_the_right_shape_is_judged_or_refused(ask: Ask, body: Any):
    answer = ask(body)
    assert answer.status_code in (200, 400, 422), answer.text
    found = answer.json()
    if answer.status_code == 200:
        assert len(found["scores"]) == len(body["trajectories"])
        assert all(score is None or 0 <= score <= 1 for score in found["scores"])
    else:
        assert found["type"].startswith("urn:gavel:problem:")


@given(body=values | st.binary(max_size=40))
@settings(max_examples=60)
def test_any_other_body_is_refused(ask: Ask, body: Any):
    assert ask(body).status_code in (400, 422)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rubric": "Be kind."},
        {"criteria": ["kind", {"name": "short", "text": "Is short.", "weight": 2}], "reference": "Jane Austen"},
        {"metadata": {"task": {"reference": "Jane Austen"}}},
        {"metadata": {"truth": {"rubric": "Be kind."}, "step": 3}},
    ],
    ids=str,
)
def test_the_truth_of_a_request_is_that_of_its_group(fields: dict[str, Any]):
    of_members = {"metadata": fields.pop("metadata", {})}
    members = [{"messages": [{"role": "user", "content": text}], **of_members} for text in "ab"]
    request = ScoreRequest.model_validate({"trajectories": members, **fields})
    assert bool(truth_of(request.group())) == bool(fields or of_members["metadata"])
