"""JSON and numbers are read as every reader reads them. What else is sent, test_openapi.py tries."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from gavel.judge.service.http.requests import read_strict_json
from gavel.judge.service.http.wires import NemoVerify
from gavel.judge.service.schemas import CriterionIn, MemberRequest, ScoreRequest

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


NO_NUMBERS = ["true", "false", '"2"', '"2.0"', '""', "2.5e400", "[2]", "{}", "NaN", "Infinity"]


@pytest.mark.parametrize("value", ["3", "3.0", "3e0", *NO_NUMBERS])
@pytest.mark.parametrize(("model", "body", "name"), NUMBERS)
def test_a_number_is_taken_however_json_writes_it_and_nothing_else(
    model: type[BaseModel], body: dict[str, Any], name: str, value: str
):
    text = json.dumps({**body, name: "VALUE"}).replace('"VALUE"', value)
    if value in NO_NUMBERS:
        with pytest.raises(ValidationError, match=name.removeprefix("_ng_")):
            model.model_validate_json(text)
    else:
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
