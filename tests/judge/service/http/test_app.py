"""The service over HTTP: what it answers, what it refuses, and how."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from gavel.judge.service.config import ServiceLimits
from tests.endpoint import Answer, Endpoint, Request, scores, verdict
from tests.judge.service.in_process import config_of, group, kind, messages, outcome, serving

pytestmark = pytest.mark.slow


def by_length(request: Request) -> Answer:
    """A verdict by what stands in each attempt, whatever the order."""
    return verdict(request, lambda text, _: text.count("good") / 4, "by words")


@pytest.fixture
async def client(tmp_path: Path, endpoint: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    endpoint.script = [by_length]
    limits = ServiceLimits(members=4, body_bytes=20_000, orders=4)
    settings: dict[str, Any] = {"limits": limits, "judges": ["openai/gpt-5"], "rubrics": {"kind": "Be kind."}}
    async with serving(config_of(tmp_path, endpoint, **settings)) as client:
        yield client


async def test_a_batch_is_answered_line_by_line_and_a_bad_line_costs_itself(client: httpx.AsyncClient):
    lines = [group("good", "bad"), {"trajectories": []}, group("good good", "bad"), group("good", "bad")]
    content = "\n\n".join(map(json.dumps, lines))
    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": "k"}
    answer = await client.post("/v1/score/batch", content=content, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    found = {line["index"]: line for line in map(json.loads, answer.text.splitlines())}
    assert [found[index].get("scores") for index in range(4)] == [[0.25, 0.0], None, [0.5, 0.0], [0.25, 0.0]]
    assert found[1]["type"] == "urn:gavel:problem:invalid-request"
    again = await client.post("/v1/score/batch", content=content, headers=headers)
    ids = {line["index"]: line["id"] for line in map(json.loads, again.text.splitlines()) if "id" in line}
    assert ids == {index: found[index]["id"] for index in (0, 2, 3)}
    assert len((await client.get("/v1/judgements")).json()["judgements"]) == 3


async def test_a_line_that_is_too_large_does_not_cost_a_batch_the_answers_of_the_others(client: httpx.AsyncClient):
    lines = [group("good", "bad"), group("x" * 30_000, "bad"), group("good good", "bad"), group("y" * 70_000, "bad")]
    sent = "\n".join(map(json.dumps, lines)).encode()

    async def in_pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(sent), 7_000):
            yield sent[start : start + 7_000]

    for content in (sent, in_pieces()):
        answer = await client.post("/v1/score/batch", content=content, headers={"Content-Type": "application/x-ndjson"})
        found = {line["index"]: line for line in map(json.loads, answer.text.splitlines())}
        assert [found[index].get("scores") for index in range(4)] == [[0.25, 0.0], None, [0.5, 0.0], None]
        assert [found[index]["status"] for index in (1, 3)] == [413, 413]


async def test_judgements_are_listed_by_status_and_page(client: httpx.AsyncClient):
    places = [(await client.post("/v1/score", json=group("good", "bad" * n))).headers["location"] for n in (1, 2, 3)]
    await client.post("/v1/score", json=group("same", "same", project="p"))
    page = (await client.get("/v1/judgements?status=scored&limit=2")).json()
    assert [f"/v1/judgements/{one['id']}" for one in page["judgements"]] == places[:0:-1]
    rest = (await client.get(f"/v1/judgements?status=finished&limit=2&before={page['next']}")).json()
    assert [f"/v1/judgements/{one['id']}" for one in rest["judgements"]] == places[:1]
    assert rest["next"] is None
    (other,) = (await client.get("/v1/judgements?project=p")).json()["judgements"]
    assert (other["status"], other["members"], other["calls"]) == ("degenerate", 2, 0)


async def test_rubric_criteria_and_reference_reach_the_judge_and_stay_text(
    client: httpx.AsyncClient, endpoint: Endpoint
):
    shown = {"rubric": "{{ 7*7 }} @/etc/passwd", "criteria": ["short", {"name": "kind", "text": "Is kind."}]}
    endpoint.script = [scores(0.5)]
    await client.post("/v1/score", json=group("good", "bad", reference="Rayleigh scattering.", **shown))
    prompt = json.dumps(endpoint.requests[0]["messages"])
    for text in ("{{ 7*7 }} @/etc/passwd", "Is kind.", "Rayleigh scattering."):
        assert text in prompt
    await client.post("/v1/score", json=group("good", "bad", preset="kind", orders=4))
    assert "Be kind." in json.dumps(endpoint.requests[-1]["messages"])


MEMBER = {"id": "m0", "messages": messages("a")}
BAD: dict[str, tuple[Any, int, str]] = {
    "no JSON": (b"{", 400, "not-json"),
    "an address of a judge": (group("a", "b", api_base="http://169.254.169.254/"), 422, "invalid-request"),
    "a judge at an address": (group("a", "b", judge="openai/http://169.254.169.254/"), 422, "invalid-request"),
    "a file as preset": (group("a", "b", preset="@/etc/passwd"), 422, "invalid-request"),
    "nobody": (group(), 422, "invalid-request"),
    "too many members": (group(*"abcde"), 422, "invalid-request"),
    "one id twice": ({"trajectories": [{"id": "x", "messages": messages(a)} for a in "ab"]}, 422, "invalid-request"),
    "an unknown judge": (group("a", "b", judge="openai/gpt-6"), 422, "invalid-request"),
    "too many orders": (group("a", "b", orders=5), 422, "invalid-request"),
    "a mode that is not allowed": (group("a", "b", mode="readout"), 422, "invalid-request"),
    "a preset and a rubric": (group("a", "b", preset="kind", rubric="x"), 422, "invalid-request"),
    "no assistant": ({"trajectories": [{"messages": [{"role": "x", "content": "a"}]}]}, 422, "invalid-request"),
    "a rubric of blanks": (group("a", "b", rubric=" \n"), 422, "invalid-request"),
    "too large": (group("a" * 30_000, "b"), 413, "too-large"),
    "more members than are allowed": ({"expected": 5, **MEMBER}, 422, "invalid-request"),
    "an unknown field of a member": ({"expected": 2, "expect": 2, **MEMBER}, 422, "invalid-request"),
    "a member that is too large": ({"expected": 2, **MEMBER, "id": "x" * 30_000}, 413, "too-large"),
}


@pytest.mark.parametrize("what", BAD)
async def test_what_cannot_be_judged_is_refused_with_a_problem_and_what_to_do(
    what: str, client: httpx.AsyncClient, endpoint: Endpoint
):
    body, status, expected = BAD[what]
    sent = body if isinstance(body, bytes) else json.dumps(body)
    answer = await client.post("/v1/groups/g/members" if "expected" in str(body) else "/v1/score", content=sent)
    assert outcome(answer) == (status, expected), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["remedy"]
    assert (await client.get("/v1/judgements")).json()["judgements"] == endpoint.requests == []
    assert (await client.get("/v1/groups/g/members/m0")).status_code == 404


@pytest.mark.parametrize(
    ("headers", "status", "expected"),
    [
        ({"Content-Type": "text/plain"}, 415, "media-type"),
        ({"Content-Encoding": "gzip"}, 415, "content-encoding"),
        ({"Content-Length": "1000000"}, 413, "too-large"),
        ({"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://127.0.0.1"}, 415, "media-type"),
        ({"Origin": "https://example.com"}, 403, "origin"),
        ({"Host": "example.com"}, 421, "host"),
        ({"Idempotency-Key": "x" * 201}, 422, "invalid-request"),
        *(
            ([(name, "a"), (name, "b")], 400, "repeated-header")
            for name in ("Authorization", "X-API-Key", "Idempotency-Key")
        ),
    ],
)
async def test_requests_that_their_headers_rule_out_are_refused(
    headers: Any, status: int, expected: str, client: httpx.AsyncClient
):
    answer = await client.post("/v1/score", content=json.dumps(group("a", "b")), headers=headers)
    assert outcome(answer) == (status, expected), answer.text
    assert answer.json()["remedy"]


@pytest.mark.parametrize(
    ("method", "path", "status", "told"),
    [
        ("GET", "/nowhere", 404, "urn:gavel:problem:"),
        ("GET", "/v1/score", 405, "urn:gavel:problem:"),
        ("POST", "/v1/score/batch?wait=false", 422, "It has none."),
        ("DELETE", "/v1/judgements/none?dry_run=true", 422, "It has none."),
        ("POST", "/v1/score?wait=true&wait=false", 422, "several values of wait"),
        ("POST", "/v1/groups/g/members?wait=1&wait=1", 422, "several values of wait"),
        ("POST", "/v1/score?wait=&wait", 422, "several values of wait"),
    ],
)
async def test_an_address_or_a_query_with_a_slip_is_refused_with_what_there_is(
    method: str, path: str, status: int, told: str, client: httpx.AsyncClient, endpoint: Endpoint
):
    refused = await client.request(method, path, json=group("a", "b") if method == "POST" else None)
    assert (refused.status_code, refused.json()["status"]) == (status, status)
    assert status != 422 or kind(refused) == "invalid-request"
    assert told in refused.text
    assert endpoint.requests == []


async def test_a_judge_that_cannot_be_asked_is_a_problem_and_a_failed_judgement(
    client: httpx.AsyncClient, endpoint: Endpoint
):
    body = {"error": {"message": "Incorrect API key", "type": "invalid_request_error", "code": "invalid_api_key"}}
    endpoint.script = [lambda request: Answer(body, 401)]
    refused = await client.post("/v1/score", json=group("good", "bad"), headers={"Idempotency-Key": "k"})
    assert (refused.status_code, kind(refused)) == (502, "judge-failed")
    stored = (await client.get(f"/v1/judgements/{refused.json()['judgement']}")).json()
    assert (stored["status"], stored["scores"]) == ("failed", [None, None])
    ready = await client.get("/readyz")
    assert (ready.status_code, kind(ready)) == (503, "judge-stopped")


async def test_an_internal_error_is_a_problem_and_tells_no_transcript(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    transcript = "a sec" + "ret"

    async def breaks(*_: object) -> None:
        raise ValueError(transcript)

    monkeypatch.setattr("gavel.judge.service.store.judgement_store.Store.page", breaks)
    answer = await client.get("/v1/judgements")
    assert (answer.status_code, kind(answer)) == (500, "internal")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "ValueError" in caplog.text
    assert transcript not in caplog.text + answer.text


async def test_health_metrics_and_description_are_there_and_all_have_headers_of_security(
    client: httpx.AsyncClient,
):
    await client.post("/v1/score", json=group("good", "bad"))
    assert [(await client.get(path)).text for path in ("/healthz", "/readyz")] == ["ok", "ok"]
    metrics = (await client.get("/metrics")).text
    assert 'gavel_groups_total{status="scored"} 1.0' in metrics
    assert 'gavel_request_seconds_count{route="/v1/score",status="200"} 1.0' in metrics
    page = await client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "POST /v1/groups/{group}/members" in page.text
    described = (await client.get("/openapi.json")).json()
    references = set(json.dumps(described).split('"#/components/schemas/')[1:])
    assert {one.partition('"')[0] for one in references} <= described["components"]["schemas"].keys()
    for path in ("/healthz", "/nowhere", "/v1/judgements"):
        headers = (await client.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers


NAMES = ["a b", "a\nb", "...", "ü😀", "%2F", "a;b", "a?b#c", "\u202eright", "\ufeff", " ", "a\\b", "e\u0301", "\u00e9"]


async def test_every_name_that_is_taken_is_found_again_at_its_address(client: httpx.AsyncClient):
    async def sent(name: str) -> None:
        body = {"expected": 3, "id": name, "messages": messages("a")}
        path = f"/v1/groups/{quote(name, safe='')}/members?wait=false"
        accepted = await client.post(path, json=body)
        assert accepted.status_code == 202, name
        found = await client.get(accepted.headers["location"])
        assert (found.status_code, found.json()["group"], found.json()["id"]) == (202, name, name)

    await asyncio.gather(*map(sent, NAMES))


@pytest.mark.parametrize("name", ["a/b", "/", "..", ".", "a\0b", "../../v1"])
async def test_a_name_that_is_not_taken_is_refused(client: httpx.AsyncClient, name: str):
    body = {"expected": 2, "id": name, "messages": messages("a")}
    assert outcome(await client.post("/v1/groups/g/members", json=body)) == (422, "invalid-request")
    path = f"/v1/groups/{quote(name, safe='').replace('.', '%2E')}/members"
    assert (await client.post(path, json={**body, "id": "m"})).status_code in (404, 422)
