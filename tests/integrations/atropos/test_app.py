"""The routes over HTTP, in front of a learner."""

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gavel.base.network import free_port
from gavel.integrations.atropos.queue import EnvRegistration, GroupQueue
from gavel.integrations.atropos.sender import AtroposClient, AtroposServerError
from gavel.integrations.atropos.server import create_app
from tests.integrations.atropos.groups import ENVIRONMENT, TRAINER, body
from tests.integrations.served import in_a_thread
from tests.trainer.conftest import Letters


@pytest.fixture
def queue(tmp_path: Path) -> GroupQueue:
    """Of a learner of 27 tokens and a context of 64."""
    return GroupQueue(tmp_path / "queue.sqlite", Letters(), most_groups=8)


@pytest.fixture
def http(queue: GroupQueue) -> Iterator[httpx.Client]:
    with (
        in_a_thread(create_app(queue, TRAINER, most_bytes=20_000)) as url,
        httpx.Client(base_url=url, trust_env=False) as client,
    ):
        yield client


def post(client: httpx.Client, path: str, content: object, method: str = "POST") -> dict:
    """With a JSON body, also for GET, as Atropos' environments ask."""
    answer = client.request(method, path, json=content)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_sender_tells_what_it_waits_for():
    told: list[str] = []
    async with AtroposClient(f"http://127.0.0.1:{free_port()}", patience=0.5, on_wait=told.append) as client:
        with pytest.raises(AtroposServerError, match="gave no answer"):
            await client.register(EnvRegistration(max_token_length=8, group_size=2))
    assert len(told) == 1


def test_environments_register_at_once_and_no_other_trainer_may(http: httpx.Client):
    assert post(http, "/register-env", ENVIRONMENT) == {
        "status": "success",
        "env_id": 0,
        "wandb_name": "desk_0",
        "checkpoint_dir": "checkpoints",
        "starting_step": 0,
        "checkpoint_interval": 0,
        "num_steps": 10,
    }
    assert http.get("/info").json() == {"batch_size": 4, "max_token_len": 64}
    assert http.get("/wandb_info").json() == {"group": "g", "project": "p"}
    assert post(http, "/disconnect-env", {"env_id": 0}) == {"status": "success"}
    assert post(http, "/disconnect-env", {"env_id": 5})["status"] == "failure"
    for method, path in [("POST", "/register"), ("GET", "/batch"), ("GET", "/reset_data")]:
        answer = http.request(method, path, json={})
        assert (answer.status_code, "own learner" in answer.json()["detail"]) == (409, True)


def test_an_environment_hears_how_much_waits_in_groups_of_its_size_and_to_come_again_when_it_is_too_much(http):
    own, other = (post(http, "/register-env", ENVIRONMENT)["env_id"] for _ in range(2))
    for number in range(3):
        post(http, "/scored_data", body(number, env_id=own))
    post(http, "/scored_data", body(3, size=4, env_id=other))
    assert post(http, "/status-env", {"env_id": own}, "GET") == {
        "current_step": 0,
        "queue_size": 5,
        "self_queue_size": 3,
        "max_group_size": 4,
        "unallocated_fraction": 1.0,
        "env_weight": 0.5,
    }
    assert http.request("GET", "/status-env", json={"env_id": 9}).status_code == 404
    for number in range(4, 8):
        post(http, "/scored_data", body(number))
    answer = http.post("/scored_data", json=body(8))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_packed_bodies_are_read_and_bombs_are_not(http: httpx.Client):
    def sent(content: bytes, coding: str = "gzip") -> httpx.Response:
        return http.post("/scored_data", content=content, headers={"Content-Encoding": coding})

    content = json.dumps(body(0)).encode()
    packed = gzip.compress(content)
    assert sent(packed).json() == {"status": "received"}
    assert sent(gzip.compress(content, 1)).json() == {"status": "received", "duplicate": True}
    refused = [gzip.compress(b" " * 10_000_000), packed[:-20], content]
    assert [sent(each).status_code for each in refused] == [413, 400, 400]
    assert sent(content, "br").status_code == 400
    assert sent(b" " * 30_000, "identity").status_code == 413
    assert http.get("/status").json()["queue_size"] == 1


def test_with_a_key_nothing_is_answered_without_it(queue: GroupQueue):
    with in_a_thread(create_app(queue, TRAINER, key="s3cret")) as url:
        assert httpx.get(f"{url}/healthz").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic ???"}):
            assert httpx.get(f"{url}/status", headers=headers).status_code == 401
        for headers in ({"Authorization": "Bearer s3cret"}, {"X-API-Key": "s3cret"}):
            assert httpx.get(f"{url}/status", headers=headers).status_code == 200
        # as a client that knows no keys is given it: in the address
        assert httpx.get(f"{url.replace('://', '://gavel:s3cret@')}/status").status_code == 200


def test_what_the_learner_can_never_train_is_refused_at_the_door(http: httpx.Client):
    long = [[1] * 65] * 2
    for changes, told in [
        ({"tokens": [[1, 2, 27], [1, 2, 3]]}, "has 27 tokens"),
        ({"tokens": long, "masks": long}, "takes 64"),
        ({"masks": [[0, 1, 1]] * 2}, "masks[0][0] is 0"),
    ]:
        answer = http.post("/scored_data", json=body(0) | changes)
        assert (answer.status_code, told in answer.json()["detail"]) == (422, True)
    assert post(http, "/scored_data", body(0)) == {"status": "received"}


def test_what_is_not_a_number_where_nothing_is_trained_is_kept(http: httpx.Client, queue: GroupQueue):
    names = ("inference_logprobs", "advantages", "ref_logprobs")
    unknown = {name: [[math.nan, -1.0, -1.0]] * 2 for name in names}
    assert http.get("/latest_example").json()["tokens"] == []
    assert http.post("/scored_data", content=json.dumps(body(0) | unknown)).status_code == 200
    newest = http.get("/latest_example").json()
    ((read, _),) = queue.read([queue.waiting[0].id])
    assert str([newest[name] for name in names]) == str([*unknown.values()])
    assert str([getattr(read, name) for name in names]) == str([*unknown.values()])
    assert newest["tokens"] == body(0)["tokens"]
