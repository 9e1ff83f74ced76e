"""API keys: without one nothing is answered, and each opens only what it is for."""

import asyncio
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from gavel.judge.service.config import KeyConfig, ServiceConfig
from gavel.judge.service.engine.admission import EAGER_SECONDS, KeyStore
from gavel.judge.service.schemas import HASH_PREFIX, new_token, token_hash
from gavel.judge.service.store.database import Database
from tests.endpoint import Answer, Endpoint, Request
from tests.judge.service.in_process import MODEL, config_of, group, key_of, make_key, messages, outcome, serving
from tests.judge.service.stub import by_content_and_position
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow

OTHER_MODEL = "openai/gpt-5"


@pytest.fixture
def config(tmp_path: Path, endpoint: Endpoint) -> ServiceConfig:
    endpoint.script = [by_content_and_position]
    return config_of(tmp_path, endpoint, judges=[OTHER_MODEL])


ROUTES = [
    ("POST", "/v1/score"),
    ("POST", "/v1/score/batch"),
    ("POST", "/v1/groups/g/members"),
    ("GET", "/v1/groups/g/members/m"),
    ("GET", "/v1/judgements"),
    ("GET", "/v1/judgements/x"),
    ("DELETE", "/v1/judgements/x"),
    ("GET", "/metrics"),
]


async def test_without_a_valid_key_no_route_but_health_answers_or_reads_a_body(
    config: ServiceConfig, endpoint: Endpoint
):
    token, read = make_key(config)[0], []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            read.append(1)
            yield b"x" * 1_000_000

    wrong = ["", f"Bearer {token[:-1]}x", f"Bearer {token}x", f"Basic {token}", "Bearer gavel_0_0", "Bearer é"]
    async with serving(config) as client:
        for method, path in ROUTES:
            refused = await client.request(method, path, content=endless())
            assert outcome(refused) == (401, "unauthorized"), path
        assert read == []
        for method, path in ROUTES:
            for header in wrong:
                headers = [(b"Authorization", header.encode("latin-1"))]
                refused = await client.request(method, path, content=b"{", headers=headers)
                assert outcome(refused) in ((401, "unauthorized"), (429, "wrong-keys")), (method, path, header)
                assert refused.headers.get("www-authenticate", "Bearer") == "Bearer"
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert (await client.get(path)).status_code == 200
    assert endpoint.requests == []


async def test_a_key_opens_the_service_and_a_revoked_one_does_not(config: ServiceConfig):
    token, key_id = make_key(config)
    password = b64encode(f"gavel:{token}".encode()).decode()
    async with serving(config) as client:
        for header in (f"Bearer {token}", f"bearer  {token}", f"Basic {password}"):
            answer = await client.post("/v1/score", json=group("a", "b"), headers={"Authorization": header})
            assert answer.status_code == 200
    with closing(Database.open(config.database)) as database:
        KeyStore(database).revoke(key_id)
    async with serving(config) as client:
        refused = await client.get("/v1/judgements", headers={"Authorization": f"Bearer {token}"})
    assert outcome(refused) == (401, "unauthorized")


async def test_a_service_without_keys_needs_one_as_soon_as_there_is_one(config: ServiceConfig):
    async with serving(config) as client:
        assert (await client.get("/v1/judgements")).status_code == 200
        key = key_of(config)
        await asyncio.sleep(EAGER_SECONDS)
        for headers, status in (({"Authorization": "Bearer gavel_0_0"}, 401), ({}, 401), (key, 200)):
            assert (await client.get("/v1/judgements", headers=headers)).status_code == status


async def test_a_key_asks_its_judges_and_sees_and_files_under_its_projects_only(config: ServiceConfig):
    mine, theirs = key_of(config, projects=["desk", "shop"]), key_of(config, projects=["lab"])
    of_another_judge = key_of(config, judges=[OTHER_MODEL])
    async with serving(config) as client:
        judged = await client.post("/v1/score", json=group("a", "b"), headers=mine)
        assert judged.json()["project"] == "desk"
        place = judged.headers["location"]
        assert (await client.get(place, headers=theirs)).status_code == 404
        assert (await client.delete(place, headers=theirs)).status_code == 404
        assert (await client.get("/v1/judgements", headers=theirs)).json()["judgements"] == []
        assert len((await client.get("/v1/judgements", headers=mine)).json()["judgements"]) == 1
        assert outcome(await client.get("/v1/judgements?project=lab", headers=mine)) == (403, "forbidden")
        refused = await client.post("/v1/score", json=group("a", "b", project="lab"), headers=mine)
        assert outcome(refused) == (403, "forbidden")
        body = {"expected": 2, "id": "m", "messages": messages("a")}
        for headers in (mine, theirs):  # the same name, and two groups
            joined = await client.post("/v1/groups/g/members?wait=false", json=body, headers=headers)
            assert joined.json()["arrived"] == 1
        refused = await client.post("/v1/score", json=group("a", "b"), headers=of_another_judge)
        assert outcome(refused) == (403, "forbidden")
        assert MODEL in refused.json()["detail"]


async def test_keys_of_the_settings_open_the_service_by_hash_and_by_environment(
    config: ServiceConfig, monkeypatch: pytest.MonkeyPatch
):
    token, _ = new_token()
    monkeypatch.setenv("CI_KEY", own := "c" * 40)
    desk = KeyConfig(hash=HASH_PREFIX + token_hash(token), projects=["desk"])
    async with serving(config.model_copy(update={"keys": {"ci": KeyConfig(env="CI_KEY"), "desk": desk}})) as client:
        assert (await client.get("/v1/judgements")).status_code == 401
        for secret, project in ((own, ""), (token, "desk")):
            headers = {"Authorization": f"Bearer {secret}"}
            judged = await client.post("/v1/score", json=group("a", "b"), headers=headers)
            assert (judged.status_code, judged.json()["project"]) == (200, project)
        for wrong in ("settings/ci", "gavel_settings/ci_", "gavel_settings/ci_x", own[:-1], token_hash(own)):
            refused = await client.get("/v1/judgements", headers={"Authorization": f"Bearer {wrong}"})
            assert outcome(refused) == (401, "unauthorized")
    async with serving(config) as client:  # the settings name them no more
        for secret in (own, token):
            refused = await client.get("/v1/judgements", headers={"Authorization": f"Bearer {secret}"})
            assert outcome(refused) == (401, "unauthorized")


@pytest.mark.parametrize("step", [-1e6, 0.0, 1e6])
async def test_requests_above_the_rate_wait_whatever_the_clock_does(
    step: float, config: ServiceConfig, monkeypatch: pytest.MonkeyPatch
):
    headers, wall = key_of(config, requests_per_minute=3), time.time
    async with serving(config) as client:
        answers = [await client.get("/v1/judgements", headers=headers) for _ in range(3)]
        monkeypatch.setattr(time, "time", lambda: wall() + step)
        answers.append(await client.get("/v1/judgements", headers=headers))
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert outcome(answers[-1]) == (429, "rate")
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60


async def test_limits_of_a_key_hold_for_requests_that_come_at_once_and_at_two_processes(
    tmp_path: Path, endpoint: Endpoint, database_url: str
):
    may_answer = threading.Event()

    def held(request: Request) -> Answer:
        assert may_answer.wait(HANG_SECONDS)
        return by_content_and_position(request)

    endpoint.script = [held]
    config = config_of(tmp_path, endpoint, database=database_url)
    headers = key_of(config, concurrent_groups=3)
    body = {"expected": 2, "id": "m", "messages": messages("a"), "wait": False}
    async with serving(config) as one, serving(config) as other:
        asked = [
            request
            for number, client in enumerate([one, other] * 8)
            for request in (
                client.post(f"/v1/groups/g{number}/members", json=body, headers=headers),
                client.post("/v1/score?wait=false", json=group("a", f"b{number}"), headers=headers),
            )
        ]
        answers = await asyncio.gather(*asked)
        may_answer.set()
    assert Counter(map(outcome, answers)) == {(202, ""): 3, (429, "too-many-groups"): 29}


async def test_what_is_paid_for_is_given_again_when_the_budget_is_spent(config: ServiceConfig):
    headers = key_of(config, max_cost_usd=1e-9, concurrent_groups=1)
    member = {"expected": 2, "id": "m", "messages": messages("a"), "wait": False}
    async with serving(config) as client:
        await client.post("/v1/groups/g/members", json=member, headers=headers)
        last = {**member, "id": "n", "messages": messages("b"), "wait": True}
        scored = await client.post("/v1/groups/g/members", json=last, headers=headers)
        again = await client.post("/v1/groups/g/members", json=last, headers=headers)
        assert again.json() == scored.json()
    headers = key_of(config, max_cost_usd=1e-9)
    once = headers | {"Idempotency-Key": "step 7, group 3"}
    async with serving(config) as client:
        paid = await client.post("/v1/score", json=group("a", "c"), headers=once)
        assert (await client.post("/v1/score", json=group("a", "c"), headers=once)).json() == paid.json()
        other = await client.post("/v1/score", json=group("a", "d"), headers=once)
        new = await client.post("/v1/score", json=group("a", "d"), headers=headers | {"Idempotency-Key": "twice"})
    assert outcome(other) == (422, "idempotency-key-reused")
    assert outcome(new) == (403, "over-budget")


async def test_a_token_is_nowhere_in_the_database_or_the_log(
    config: ServiceConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    token = make_key(config)[0]
    caplog.set_level("DEBUG")
    async with serving(config) as client:
        await client.post("/v1/score", json=group("zebra", "b"), headers={"Authorization": f"Bearer {token}"})
    secret = token.split("_", 2)[2]  # which may have a _ too
    written = b"".join([path.read_bytes() for path in await asyncio.to_thread(lambda: list(tmp_path.iterdir()))])
    assert secret[-20:].encode() not in written
    ours = "".join(record.getMessage() for record in caplog.records if record.name.startswith("gavel"))
    assert secret not in caplog.text
    assert "zebra" not in ours


async def test_a_burst_of_accepted_groups_does_not_overspend_a_keys_budget(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [by_content_and_position]
    config = config_of(tmp_path, endpoint)
    async with serving(config) as client:
        cost = (await client.post("/v1/score", json=group("a", "b"))).json()["cost_usd"]
    headers = key_of(config, max_cost_usd=3.5 * cost)
    async with serving(config) as client:
        asked = [client.post("/v1/score?wait=false", json=group("a", f"c{n}"), headers=headers) for n in range(12)]
        accepted = [answer.headers["location"] for answer in await asyncio.gather(*asked) if answer.status_code == 202]
        assert len(accepted) > 4
        waited = [await client.get(f"{place}?wait={HANG_SECONDS}", headers=headers) for place in accepted]
    found = [answer.json() for answer in waited]
    scored = [one for one in found if one["status"] == "scored"]
    assert 3 <= len(scored) <= 4
    assert sum(one["cost_usd"] for one in scored) <= 4.5 * cost
    left_out = [one for one in found if one["status"] == "unscored"]
    assert len(scored) + len(left_out) == len(accepted)
    assert all(one["scores"] == [None, None] and "budget" in one["members"][0]["reason"] for one in left_out)


@pytest.mark.parametrize("shared", [False, True])
async def test_stored_replies_answer_the_key_that_paid_for_them_unless_they_are_shared(
    shared: bool, config: ServiceConfig, endpoint: Endpoint
):
    one, other = key_of(config), key_of(config)
    async with serving(config.model_copy(update={"share_replies": shared})) as client:
        asked = [
            (await client.post("/v1/score", json=group("a", "b"), headers=key)).json() for key in (one, one, other)
        ]
        assert [answer["calls"] for answer in asked] == [2, 0, 0 if shared else 2]
        assert len(endpoint.requests) == (2 if shared else 4)
        place = f"/v1/judgements/{asked[0]['id']}"  # the replies are found again, to be erased
        assert (await client.delete(place, headers=one)).status_code == 204
        again = (await client.post("/v1/score", json=group("a", "b"), headers=other)).json()
        assert again["calls"] == (2 if shared else 0)
