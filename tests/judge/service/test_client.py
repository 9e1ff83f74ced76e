"""The Python client against a real service on loopback, and against servers that fail."""

import asyncio
from pathlib import Path

import pytest

import gavel
from gavel.judge.errors import JudgeError
from gavel.judge.service.client import JudgeClient, RefusalError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import History, Trajectory
from tests.endpoint import Answer, Endpoint, Step, scores
from tests.judge.groups import desk
from tests.judge.service.in_process import MODEL, config_of, messages
from tests.judge.service.processes import served
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow


def attempts(*answers: str) -> TrajectoryGroup:
    return TrajectoryGroup(Trajectory(messages_and_choices=[*messages(answer)]) for answer in answers)


def figures(group: TrajectoryGroup) -> list[object]:
    members = [(t.reward, t.judgement.reason, t.judgement.standard_error) for t in group if t.judgement]
    assert group.judgement
    assert len(members) == len(group)
    return [group.judgement.status, *members]


async def test_a_group_is_judged_as_by_the_judge_itself(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [scores(0.9, 0.4, 0.1)]
    failed = Trajectory(status="failed", status_reason="the sandbox died")
    team = attempts("yes", "no")
    for member in team:
        worker = History(messages_and_choices=[*member.messages_and_choices], agent="worker")
        member.agent, member.additional_histories = "planner", [worker]
    truth = {"reference": "Rayleigh", "criteria": ["is short"]}
    groups = [
        attempts("yes", "no", "perhaps"),
        TrajectoryGroup([*attempts("yes", "no"), failed], metadata={"truth": truth, "mine": 1}),
        TrajectoryGroup([desk("get_order", "refund"), desk("deny"), desk(ending=None)]),
        team,
    ]
    judge = gavel.Judge(gavel.Juror(MODEL, params=endpoint.params), orders=2)
    async with served(config_of(tmp_path, endpoint, port=0)) as service, JudgeClient(service.url) as client:
        for group in groups:
            expected = await judge.score(group)
            for judged in (await client.score(group), await asyncio.to_thread(client.score_now, group)):
                assert figures(judged) == figures(expected)
                assert judged.metadata == group.metadata
    named = [request for request in map(str, endpoint.requests) if "agent: planner" in request]
    assert len(named) == 2 * judge.orders  # of the judge and of the service, which keeps its replies
    assert all("conversation 2" in request and "agent: worker" in request for request in named)


def answers(status: int, body: object, **headers: str) -> Step:
    return lambda request: Answer(body, status, headers)


MEMBER = {"id": "0", "score": 0.5, "standard_error": None, "explanation": "", "flags": [], "reason": None}
JUDGED = {"id": "1", "status": "scored", "scores": [0.5], "members": [MEMBER], "calls": 1}
PROBLEM = "urn:gavel:problem"
BUSY = {"type": f"{PROBLEM}:overloaded", "detail": "many wait", "status": 429}


async def test_what_may_pass_is_sent_again_with_the_same_key(endpoint: Endpoint):
    endpoint.script = [
        lambda request: Answer({}, breaks_off=True),
        answers(503, b"<html>no</html>"),
        answers(429, BUSY, **{"Retry-After": "1"}),
        answers(200, JUDGED),
    ]
    async with JudgeClient(endpoint.url, deadline=HANG_SECONDS) as client:
        judged = await client.score(attempts("yes"))
    assert [t.reward for t in judged] == [0.5]
    assert len(endpoint.requests) == 4


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (422, {"type": f"{PROBLEM}:invalid-request", "detail": "too many", "remedy": "Send fewer."}, "Send fewer"),
        (502, {"type": f"{PROBLEM}:judge-failed", "detail": "no key", "remedy": "Set it."}, "no key"),
        (404, b"nothing", "is .* a judge service"),
        (200, {"status": "scored"}, "status 200"),
    ],
)
def test_what_lasts_is_raised_at_once_with_what_to_do(status: int, body: object, message: str, endpoint: Endpoint):
    endpoint.script = [answers(status, body)]
    with pytest.raises(JudgeError, match=f"(?i){message}"):
        JudgeClient(endpoint.url).score_now(attempts("yes"))
    assert len(endpoint.requests) == 1


def test_after_the_deadline_it_says_what_it_met(endpoint: Endpoint):
    endpoint.script = [answers(503, {"detail": "the database does not answer"})]
    with pytest.raises(JudgeError, match=r"0\.5 s: the database does not answer"):
        JudgeClient(endpoint.url, deadline=0.5).score_now(attempts("yes"))
    with pytest.raises(JudgeError, match="running"):
        JudgeClient("http://127.0.0.1:9", deadline=0.3).score_now(attempts("yes"))


def test_without_an_address_it_says_where_to_get_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GAVEL_JUDGE_URL", raising=False)
    with pytest.raises(JudgeError, match="gavel serve"):
        JudgeClient()
    monkeypatch.setenv("GAVEL_JUDGE_URL", "http://host:1/")
    assert JudgeClient().url == "http://host:1"


async def test_a_member_that_is_accepted_is_asked_for_at_its_own_address(endpoint: Endpoint):
    place = "/v1/groups/g/members/a?project=desk"
    answer = {**MEMBER, "id": "a", "status": "scored", "judgement": "j", "arrived": 2}
    endpoint.script = [answers(202, {"id": "a"}, Location=place), answers(200, answer)]
    async with JudgeClient(endpoint.url, deadline=HANG_SECONDS, project="desk") as client:
        (member,) = attempts("yes")
        score = await client.score_member(member, "g", expected=2, id="a", deadline_seconds=5)
    assert (score.judgement.score, score.record, score.arrived) == (0.5, "j", 2)
    assert endpoint.requests[0]["project"] == "desk"
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize("key", ["a\nb", "schlüssel", "a\0b", "“gavel_1_x”"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key: str):
    with pytest.raises(JudgeError) as refused:
        JudgeClient("http://127.0.0.1:1", key)
    assert key not in str(refused.value)
    assert "gavel keys create" in refused.value.remedy


def test_what_judges_take_the_service_is_sent_in_json_that_all_read_alike(endpoint: Endpoint):
    endpoint.script = [answers(422, {"detail": "no", "remedy": "none"})]
    odd = {"role": "assistant", "content": "half \ud83d, right-to-left \u202eשלום", "share": float("nan")}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"maximum": float("inf")}}}
    group = TrajectoryGroup(Trajectory(messages_and_choices=[odd], tools=[tool]) for _ in "ab")
    with pytest.raises(RefusalError):
        JudgeClient(endpoint.url).score_now(group)
    (message,) = endpoint.requests[-1]["trajectories"][0]["messages"]
    assert message["content"] == "half \ufffd, right-to-left \u202eשלום"
    assert message["share"] == "NaN"
