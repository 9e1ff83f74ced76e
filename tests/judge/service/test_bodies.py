"""Whatever is sent, the answer is scores or a typed refusal; JSON and numbers are read as every reader reads them."""

import asyncio
import json
import math
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from gavel.judge.config import JudgeConfig
from gavel.judge.service.config import ServiceConfig
from gavel.judge.service.http.requests import read_strict_json
from gavel.judge.service.http.wires import NemoVerify
from gavel.judge.service.schemas import CriterionIn, MemberRequest, ScoreRequest
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


MESSAGES = [{"role": "user", "content": "Hello?"}]
MEMBER = {"expected": 2, "id": "a", "messages": MESSAGES}
SCORE = {"trajectories": [{"messages": MESSAGES}]}
VERIFY = {"responses_create_params": {"input": "?"}, "response": {"output": []}, "_ng_rollout_index": 0}
CRITERION = {"name": "kind", "text": "It is kind."}
NUMBERS: list[tuple[type[BaseModel], dict[str, Any], str]] = [
    (MemberRequest, MEMBER, "expected"),
    (MemberRequest, MEMBER, "deadline_seconds"),
    (ScoreRequest, SCORE, "orders"),
    (CriterionIn, CRITERION, "weight"),
    (NemoVerify, VERIFY, "_ng_rollout_index"),
    (NemoVerify, VERIFY, "_ng_task_index"),
]


@pytest.mark.parametrize("value", ["true", "false", '"2"', '"2.0"', '""', "2.5e400", "[2]", "{}", "NaN", "Infinity"])
@pytest.mark.parametrize(("model", "body", "name"), NUMBERS)
def test_what_is_no_number_is_refused(model: type[BaseModel], body: dict[str, Any], name: str, value: str):
    text = json.dumps({**body, name: "VALUE"}).replace('"VALUE"', value)
    with pytest.raises(ValidationError, match=name.removeprefix("_ng_")):
        model.model_validate_json(text)


@pytest.mark.parametrize("value", ["3", "3.0", "3e0"])
@pytest.mark.parametrize(("model", "body", "name"), NUMBERS)
def test_a_number_is_taken_however_json_writes_it(model: type[BaseModel], body: dict[str, Any], name: str, value: str):
    text = json.dumps({**body, name: "VALUE"}).replace('"VALUE"', value)
    assert model.model_validate_json(text).model_dump(by_alias=True)[name] == 3


BAD = {
    "NaN": b'{"a": NaN}',
    "infinity": b"[-Infinity]",
    "a name twice": b'{"rubric": "a", "b": 1, "rubric": "c"}',
    "a name twice, deep within": b'[{"x": {"y": [1, {"a": 1, "a": 1}]}}]',
    "a mark of UTF-8": b"\xef\xbb\xbf{}",
    "UTF-16": "{}".encode("utf-16"),
    "a surrogate in UTF-8": b'"\xed\xa0\x80"',
    "a control character": b'"\x01"',
    "two values": b"{}{}",
    "nothing": b"",
    "a comment": b"{} // x",
    "a comma more": b"[1,]",
}


@pytest.mark.parametrize("what", BAD)
def test_what_readers_differ_on_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        read_strict_json(BAD[what])
    assert 0 < len(str(refused.value)) < 300


@given(exponent=st.integers(-400, 400), digits=st.integers(1, 400), point=st.booleans())
def test_a_number_is_refused_where_no_float_holds_it(exponent: int, digits: int, point: bool) -> None:
    number = f"{'7' * digits}{'.5' if point else ''}e{exponent}"
    if math.isinf(float(number)):
        with pytest.raises(ValueError, match=r"."):
            read_strict_json(number.encode())
    else:
        read_strict_json(number.encode())
