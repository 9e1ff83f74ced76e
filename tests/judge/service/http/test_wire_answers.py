"""The wires of other systems: the same scores as everywhere, in the bodies that their clients send and read."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import httpx
import pytest

import gavel
from gavel.judge.service.config import ServiceConfig, ServiceLimits
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from tests.endpoint import Endpoint, says
from tests.judge.service.in_process import MODEL, config_of, group, messages, outcome, serving
from tests.judge.service.stub import by_content_and_position

pytestmark = pytest.mark.slow

ANSWERS = ["answer-worth-0", "answer-worth-1", "answer-worth-2", "answer-worth-3"]
PROMPT: str = messages("")[0]["content"]
Scores = list[float | None]
Wire = Callable[[httpx.AsyncClient], Awaitable[Scores]]


def ors(answers: list[str]) -> dict[str, Any]:
    """What `session.score_group` of openreward 0.1.167 sends."""

    def message(role: str, text: str) -> dict[str, Any]:
        return {"role": role, "blocks": [{"text": text, "detail": None, "type": "text"}], "detail": None}

    candidates = [
        {"messages": [message("user", PROMPT), message("assistant", text)], "metadata": {"rollout": number}}
        for number, text in enumerate(answers)
    ]
    return {"candidates": candidates}


def response(text: str) -> dict[str, Any]:
    """A response as nemo-gym 0.7.0's policies give it."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    said = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
    thought = {"id": "r", "type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    return {"id": "resp", "created_at": 0.0, "model": "p", "object": "response", "output": [thought, said]}


def verify(index: int, text: str, **more: Any) -> dict[str, Any]:
    """What nemo-gym's rollout collection sends to /verify."""
    asked = {"input": [{"role": "user", "content": PROMPT, "type": "message"}], "temperature": 1.0}
    own = {"_ng_task_index": 3, "_ng_rollout_index": index}
    return {"responses_create_params": asked, "response": response(text), **own, **more}


def sample(text: str, label: str | None = None) -> dict[str, Any]:
    """What slime's remote_rm sends."""
    return {"prompt": PROMPT, "response": text, "label": label}


async def all_of(client: httpx.AsyncClient, path: str, bodies: list[dict[str, Any]]) -> list[Any]:
    """The answers to requests that are sent in random order and wait for each other."""
    order = random.Random(0).sample(range(len(bodies)), len(bodies))
    answers = await asyncio.gather(*(client.post(path, json=bodies[number]) for number in order))
    assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
    by_number = dict(zip(order, (answer.json() for answer in answers), strict=True))
    return [by_number[number] for number in range(len(bodies))]


def whole(path: str, body: Any, read: Callable[[Any], Scores]) -> Wire:
    async def ask(client: httpx.AsyncClient) -> Scores:
        return read((await client.post(path, content=json.dumps(body))).json())

    return ask


async def rendezvous(client: httpx.AsyncClient) -> Scores:
    bodies = [{"expected": 4, "id": f"m{9 - n}", "messages": messages(text)} for n, text in enumerate(ANSWERS)]
    answers = await all_of(client, "/v1/groups/g/members", bodies)
    assert {(one["status"], one["expected"], one["arrived"]) for one in answers} == {("scored", 4, 4)}
    return [answer["score"] for answer in answers]


async def ors_as_json(client: httpx.AsyncClient) -> Scores:
    answer = (await client.post("/judge/score_group", json=ors(ANSWERS))).json()
    assert [one["metadata"]["rollout"] for one in answer["scores"]] == [0, 1, 2, 3]
    return [one["reward"] for one in answer["scores"]]


async def ors_as_events(client: httpx.AsyncClient) -> Scores:
    headers = {"Accept": "text/event-stream", "X-Session-ID": "s"}
    answer = await client.post("/judge/score_group", json=ors(ANSWERS), headers=headers)
    (first, task), (last, data) = events(answer.text)
    assert (first, last) == ("task_id", "end")
    resumed = await client.post("/judge/score_group", json={**ors(ANSWERS), "task_id": task}, headers=headers)
    assert events(resumed.text)[-1] == ("end", data)
    return [one["reward"] for one in json.loads(data)["scores"]]


async def nemo_verify(client: httpx.AsyncClient) -> Scores:
    bodies = [verify(number, text) for number, text in enumerate(ANSWERS)]
    answers = await all_of(client, "/verify", bodies)
    for body, answer in zip(bodies, answers, strict=True):
        assert {name: answer[name] for name in body} == body
        assert answer["mask_sample"] is False
    return [answer["reward"] for answer in answers]


async def slime_samples(client: httpx.AsyncClient) -> Scores:
    return await all_of(client, "/slime/run?size=4", [sample(text) for text in ANSWERS])


def events(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for block in text.replace("\r\n", "\n").strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields["event"], fields["data"]))
    return found


COMPARED = {
    "conversation_history": [{"role": "user", "content": PROMPT}],
    "response_objs": [response(text) for text in ANSWERS],
}
WIRES: dict[str, Wire] = {
    "a group": whole("/v1/score", group(*ANSWERS), itemgetter("scores")),
    "a group backwards": whole("/v1/score", group(*ANSWERS[::-1]), lambda answer: answer["scores"][::-1]),
    "a batch of one": whole("/v1/score/batch", group(*ANSWERS), itemgetter("scores")),
    "members": rendezvous,
    "ORS as JSON": ors_as_json,
    "ORS as events": ors_as_events,
    "NeMo Gym's compare": whole("/compare", COMPARED, itemgetter("rewards")),
    "NeMo Gym's verify": nemo_verify,
    "slime's samples": slime_samples,
    "slime's list": whole("/slime/run", [sample(text) for text in ANSWERS], list),
}


@pytest.fixture
def config(tmp_path: Path, endpoint: Endpoint) -> ServiceConfig:
    endpoint.script = [by_content_and_position]
    return config_of(tmp_path, endpoint, group_size=4, rubrics={"desk": "Be a good clerk."})


async def test_a_group_has_the_same_scores_whichever_way_it_comes(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [by_content_and_position]
    judge = gavel.Judge(gavel.Juror(MODEL, params=endpoint.params), orders=2)
    members = (Trajectory(messages_and_choices=list(messages(text))) for text in ANSWERS)
    judged = await judge.score(TrajectoryGroup(members))
    in_python = [trajectory.reward for trajectory in judged]
    assert len(set(in_python)) == len(ANSWERS)
    for name, wire in WIRES.items():
        folder = tmp_path / name  # a database of its own: no reply of another wire answers
        folder.mkdir()
        asked = len(endpoint.requests)
        async with serving(config_of(folder, endpoint, group_size=4)) as client:
            assert await wire(client) == in_python, name
        assert len(endpoint.requests) == asked + 2, name


async def test_nemo_gym_masks_a_rollout_that_is_not_scored_and_events_of_ors_end_with_an_error(
    config: ServiceConfig, endpoint: Endpoint
):
    endpoint.script = [lambda request: says("I cannot tell.")]
    async with serving(config.model_copy(update={"group_size": 1})) as client:
        streamed = await client.post("/judge/score_group", json=ors(ANSWERS), headers={"Accept": "text/event-stream"})
        answer = (await client.post("/verify", json=verify(0, "alone"))).json()
    assert events(streamed.text)[-1][0] == "error"
    assert (answer["reward"], answer["mask_sample"], answer["failure_kind"]) == (0.0, True, "judge_failed")
    assert answer["failure_reason"]


REFUSED: dict[str, tuple[str, Any, int, str]] = {
    "ORS: not scored": ("/judge/score_group", ors(ANSWERS), 502, "unscored"),
    "NeMo Gym: not scored": ("/compare", COMPARED, 502, "unscored"),
    "slime: not scored": ("/slime/run", [sample(text) for text in ANSWERS], 502, "unscored"),
    "slime: alone, for which the judge is not to blame": ("/slime/run?size=1", sample("alone"), 422, "unscored"),
    "ORS: an unknown environment": ("/nowhere/score_group", ors(ANSWERS), 404, "no-such-environment"),
    "ORS: an unknown task": ("/judge/score_group", {**ors(["a"]), "task_id": "x"}, 404, "not-found"),
    "NeMo Gym: no rollout index": ("/verify", {**verify(0, "a"), "_ng_rollout_index": None}, 422, "invalid-request"),
    "slime: nobody": ("/slime/run", [], 422, "invalid-request"),
    "slime: two prompts": ("/slime/run", [sample("a"), {**sample("b"), "prompt": "?"}], 422, "invalid-request"),
    "slime: too many": ("/slime/run?size=1000", sample("a"), 422, "invalid-request"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_is_not_scored_or_cannot_be_judged_is_refused_and_no_number(
    what: str, config: ServiceConfig, endpoint: Endpoint
):
    endpoint.script = [lambda request: says("I cannot tell.")]
    path, body, status, kind = REFUSED[what]
    async with serving(config) as client:
        refused = await client.post(path, json=body)
    assert outcome(refused) == (status, kind), refused.text


async def test_an_environment_of_ors_is_a_rubric_and_a_label_of_slime_a_reference(
    config: ServiceConfig, endpoint: Endpoint
):
    async with serving(config) as client:
        await client.post("/desk/score_group", json=ors(ANSWERS))
        assert "Be a good clerk." in json.dumps(endpoint.requests[-1]["messages"])
        await client.post("/slime/run", json=[sample(text, "Rayleigh scattering.") for text in ANSWERS])
        assert "Rayleigh scattering." in json.dumps(endpoint.requests[-1]["messages"])


async def test_samples_of_one_text_are_members_each_and_a_prompt_may_come_again(config: ServiceConfig):
    async with serving(config) as client:
        same = [sample("answer-worth-1"), sample("answer-worth-1"), sample("answer-worth-2"), sample("answer-worth-3")]
        first = await all_of(client, "/slime/run", same)
        assert first[0] == first[1]
        assert (await client.post("/slime/run", json=same[0])).json() == first[0]  # as after a lost answer
        following = await all_of(client, "/slime/run", [sample(f"other-worth-{n}") for n in range(4)])
        assert len(set(following)) == 4


async def test_a_sample_whose_connection_broke_takes_its_place_again(config: ServiceConfig):
    async with serving(config.model_copy(update={"limits": ServiceLimits(wait_seconds=0.2)})) as client:
        for _ in range(2):  # two callers one after the other are one sample that came again
            waiting = await client.post("/slime/run?size=2", json=sample("answer-worth-1"))
            assert (waiting.status_code, waiting.headers["retry-after"]) == (503, "5")
    async with serving(config) as client:
        rewards = await all_of(client, "/slime/run?size=2", [sample("answer-worth-1"), sample("answer-worth-2")])
        assert len(set(rewards)) == 2


async def test_a_tool_calling_candidate_of_ors_reads_as_the_same_chat(config: ServiceConfig, endpoint: Endpoint):
    call = {"type": "tool_call", "id": "c", "name": "look_up", "input": {"order": 7890}, "detail": None}
    found = {"type": "text", "text": "9 days old", "detail": None}
    result = {"type": "tool_result", "tool_call_id": "c", "blocks": [found], "is_error": False, "detail": None}
    thought = {"type": "reasoning", "text": "zebra", "signature": None, "detail": None}
    body = ors(ANSWERS[:2])
    body["candidates"][0]["messages"][1:1] = [
        {"role": "assistant", "blocks": [thought, call], "detail": None},
        {"role": "user", "blocks": [result], "detail": None},
    ]
    chat = group(*ANSWERS[:2])
    function = {"name": "look_up", "arguments": json.dumps({"order": 7890})}
    chat["trajectories"][0]["messages"][1:1] = [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": "9 days old"},
    ]
    async with serving(config) as client:
        rewards = [one["reward"] for one in (await client.post("/judge/score_group", json=body)).json()["scores"]]
        asked = len(endpoint.requests)
        again = (await client.post("/v1/score", json=chat)).json()
    assert (again["scores"], again["cached_calls"], len(endpoint.requests)) == (rewards, asked, asked)
    assert "zebra" not in json.dumps(endpoint.requests[0]["messages"])
