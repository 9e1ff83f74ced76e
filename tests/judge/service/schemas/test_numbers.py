"""Numbers in requests are numbers: nothing that only looks like one is taken for another value."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from gavel.judge.service.config import ServiceConfig, ServiceLimits
from gavel.judge.service.http.wires import NemoVerify
from gavel.judge.service.schemas.bodies import CriterionIn, MemberRequest, ScoreRequest
from gavel.judge.service.schemas.records import KeyScope

MESSAGES = [{"role": "user", "content": "Hello?"}]
MEMBER = {"expected": 2, "id": "a", "messages": MESSAGES}
SCORE = {"trajectories": [{"messages": MESSAGES}]}
VERIFY = {"responses_create_params": {"input": "?"}, "response": {"output": []}, "_ng_rollout_index": 0}
CRITERION = {"name": "kind", "text": "It is kind."}
NUMBERS: list[tuple[type[BaseModel], dict[str, Any], str]] = [
    (MemberRequest, MEMBER, "expected"),
    (MemberRequest, MEMBER, "deadline_seconds"),
    (MemberRequest, MEMBER, "orders"),
    (ScoreRequest, SCORE, "orders"),
    (CriterionIn, CRITERION, "weight"),
    (NemoVerify, VERIFY, "_ng_rollout_index"),
    (NemoVerify, VERIFY, "_ng_task_index"),
    (NemoVerify, VERIFY, "_ng_group_attempt"),
]
TRUTHS: list[tuple[type[BaseModel], dict[str, Any], str]] = [
    (MemberRequest, MEMBER, "wait"),
    (MemberRequest, MEMBER, "retain"),
    (ScoreRequest, SCORE, "retain"),
]
SETTINGS: list[tuple[type[BaseModel], str]] = [
    *((ServiceLimits, name) for name in ServiceLimits.model_fields),
    *((ServiceConfig, name) for name in ("port", "group_size", "retention_days")),
    *((KeyScope, name) for name in ("max_cost_usd", "requests_per_minute", "concurrent_groups")),
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


@pytest.mark.parametrize("value", ["1", "0", '"true"', '"no"', "1.0", "null"])
@pytest.mark.parametrize(("model", "body", "name"), TRUTHS)
def test_what_is_no_truth_value_is_refused(model: type[BaseModel], body: dict[str, Any], name: str, value: str):
    text = json.dumps({**body, name: "VALUE"}).replace('"VALUE"', value)
    with pytest.raises(ValidationError, match=name):
        model.model_validate_json(text)


@pytest.mark.parametrize(("model", "name"), SETTINGS)
def test_a_setting_is_a_number_or_its_text_and_no_truth_value(model: type[BaseModel], name: str):
    assert model.model_validate({name: "2048"}) == model.model_validate({name: 2048})
    for wrong in (True, False, "true", float("inf"), float("nan")):
        with pytest.raises(ValidationError, match=name):
            model.model_validate({name: wrong})
