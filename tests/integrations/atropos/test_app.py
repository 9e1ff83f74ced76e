"""The routes over HTTP, for another trainer and in front of a learner of one's own."""

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gavel.integrations.atropos.queue import EnvRegistration, GroupQueue, TrainerRegistration
from gavel.integrations.atropos.sender import AtroposClient, AtroposServerError
from gavel.integrations.atropos.server import create_app
from tests.integrations.atropos.groups import ENVIRONMENT, REGISTRATION, body
from tests.integrations.served import in_a_thread
from tests.trainer.conftest import Letters


@pytest.fixture
def queue(tmp_path: Path) -> GroupQueue:
    return GroupQueue(tmp_path / "queue.sqlite", most_groups=8)


@pytest.fixture
def http(queue: GroupQueue) -> Iterator[httpx.Client]:
    with (
        in_a_thread(create_app(queue, most_bytes=20_000)) as url,
        httpx.Client(base_url=url, trust_env=False) as client,
    ):
        yield client


@pytest.fixture
def own(tmp_path: Path) -> Iterator[httpx.Client]:
    """In front of a learner of 27 tokens and a context of 64."""
    queue = GroupQueue(tmp_path / "queue.sqlite", space=Letters())
    queue.register(TrainerRegistration.model_validate(REGISTRATION), started=True)
    with (
        in_a_thread(create_app(queue)) as url,
        httpx.Client(base_url=url, trust_env=False) as client,
    ):
        yield client


def post(client: httpx.Client, path: str, content: object, method: str = "POST") -> dict:
    """With a JSON body, also for GET, as Atropos' environments ask."""
    answer = client.request(method, path, json=content)
    assert answer.status_code == 200, answer.text
    return answer.json()


def started(client: httpx.Client) -> None:
    post(client, "/register", REGISTRATION)
    assert client.get("/batch").json() == {"batch": None}


async def test_a_sender_tells_what_it_waits_for(http: httpx.Client):
    told: list[str] = []
    async with AtroposClient(str(http.base_url), patience=0.5, on_wait=told.append) as client:
        with pytest.raises(AtroposServerError, match="trainer"):
            await client.register(EnvRegistration(max_token_length=8, group_size=2))
    assert told == ["it says: wait for trainer to start"]


def test_a_trainer_and_an_environment_meet(http: httpx.Client):
    assert http.get("/info").json() == {"batch_size": -1, "max_token_len": -1}
    assert http.get("/wandb_info").json() == {"group": None, "project": None}
    assert post(http, "/register-env", ENVIRONMENT) == {"status": "wait for trainer to start"}
    assert isinstance(post(http, "/register", REGISTRATION)["uuid"], int)
    assert post(http, "/register-env", ENVIRONMENT) == {"status": "wait for trainer to start"}
    assert http.get("/batch").json() == {"batch": None}
    assert post(http, "/register-env", ENVIRONMENT) == {
        "status": "success",
        "env_id": 0,
        "wandb_name": "desk_0",
        "checkpoint_dir": "checkpoints",
        "starting_step": 0,
        "checkpoint_interval": 0,
        "num_steps": 10,
    }
    assert http.get("/info").json() == {"batch_size": 4, "max_token_len": 512}
    assert http.get("/wandb_info").json() == {"group": "g", "project": "p"}
    assert post(http, "/disconnect-env", {"env_id": 0}) == {"status": "success"}
    assert post(http, "/disconnect-env", {"env_id": 5})["status"] == "failure"


def test_batches_are_the_oldest_groups_and_each_is_handed_out_once(http: httpx.Client):
    started(http)
    for number in range(4):
        assert post(http, "/scored_data", body(number)) == {"status": "received"}
    assert http.get("/status").json() == {"current_step": 0, "queue_size": 4}
    first, second, third = (http.get("/batch").json() for _ in range(3))
    assert [group["scores"][0] for group in first["batch"]] == [0, 1]
    assert [group["scores"][0] for group in second["batch"]] == [2, 3]
    assert (first["batch_id"], second["batch_id"], third) == (1, 2, {"batch": None})
    assert http.get("/status").json() == {"current_step": 2, "queue_size": 0}
    assert first["batch"][0]["tokens"] == body(0)["tokens"]
    assert first["batch"][0]["ref_logprobs"] is None  # trainers look the fields up


def test_groups_before_any_trainer_are_kept_for_it(http: httpx.Client):
    told = "Trainer not registered. Call /register first."
    assert http.get("/batch").json() == {"status": "error", "message": told, "batch": []}
    post(http, "/scored_data", body(0))
    post(http, "/scored_data_list", [body(1), body(2)])
    post(http, "/register", REGISTRATION)
    assert [group["scores"][0] for group in http.get("/batch").json()["batch"]] == [0, 1]


def test_an_environment_hears_how_much_waits_in_groups_of_its_size(http: httpx.Client):
    started(http)
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


def test_a_full_queue_asks_to_come_again(http: httpx.Client):
    for number in range(8):
        post(http, "/scored_data", body(number))
    answer = http.post("/scored_data", json=body(8))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_a_group_that_no_batch_can_hold_is_refused_and_a_reset_begins_anew(http: httpx.Client):
    started(http)
    answer = http.post("/scored_data", json=body(0, size=5))
    assert (answer.status_code, "a batch 4" in answer.json()["detail"]) == (422, True)
    post(http, "/scored_data", body(0))
    assert http.get("/reset_data").text == "Reset successful"
    assert http.get("/status").json() == {"current_step": 0, "queue_size": 0}
    assert post(http, "/register-env", ENVIRONMENT)["status"] == "wait for trainer to start"


def test_with_a_key_nothing_is_answered_without_it(queue: GroupQueue):
    with in_a_thread(create_app(queue, key="s3cret")) as url:
        assert httpx.get(f"{url}/healthz").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic ???"}):
            assert httpx.get(f"{url}/status", headers=headers).status_code == 401
        for headers in ({"Authorization": "Bearer s3cret"}, {"X-API-Key": "s3cret"}):
            assert httpx.get(f"{url}/status", headers=headers).status_code == 200
        # as a client that knows no keys is given it: in the address
        assert httpx.get(f"{url.replace('://', '://gavel:s3cret@')}/status").status_code == 200


def test_in_front_of_a_learner_environments_register_at_once_and_no_other_trainer_may(own: httpx.Client):
    assert post(own, "/register-env", ENVIRONMENT)["status"] == "success"
    for method, path in [("POST", "/register"), ("GET", "/batch"), ("GET", "/reset_data")]:
        answer = own.request(method, path, json=REGISTRATION)
        assert (answer.status_code, "own learner" in answer.json()["detail"]) == (409, True)


def test_what_the_learner_can_never_train_is_refused_at_the_door(own: httpx.Client):
    long = [[1] * 65] * 2
    for changes, told in [
        ({"tokens": [[1, 2, 27], [1, 2, 3]]}, "has 27 tokens"),
        ({"tokens": long, "masks": long}, "takes 64"),
        ({"masks": [[0, 1, 1]] * 2}, "masks[0][0] is 0"),
    ]:
        answer = own.post("/scored_data", json=body(0) | changes)
        assert (answer.status_code, told in answer.json()["detail"]) == (422, True)
    assert post(own, "/scored_data", body(0)) == {"status": "received"}


def test_what_is_not_a_number_where_nothing_is_trained_is_handed_on(http: httpx.Client):
    unknown = {name: [[math.nan, -1.0, -1.0]] * 2 for name in ("inference_logprobs", "advantages", "ref_logprobs")}
    started(http)
    for number in range(2):
        assert http.post("/scored_data", content=json.dumps(body(number) | unknown)).status_code == 200
    newest = http.get("/latest_example").json()
    first, second = http.get("/batch").json()["batch"]
    assert str([first[name] for name in unknown]) == str([newest[name] for name in unknown]) == str([*unknown.values()])
    assert second["tokens"] == newest["tokens"]
