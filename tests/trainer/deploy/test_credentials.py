"""Keys that no header holds, and addresses that hold a password, are refused before anything is asked or written."""

import pytest

from gavel.trainer.deploy.deploy import deploy
from gavel.trainer.deploy.host import key_of, open_host, server_address
from gavel.trainer.deploy.record import DEPLOYMENTS, AdapterFacts, DeployError


def test_white_space_around_a_key_is_not_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", " abcd-1234\n")
    assert key_of("SOME_KEY") == "abcd-1234"


@pytest.mark.parametrize("given", ["abcd\nPLANTED", "abcd PLANTED", "äbcd-PLANTED", "", " "])
def test_a_key_that_no_header_holds_is_refused_without_being_told(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", given)
    with pytest.raises(DeployError, match="SOME_KEY") as error:
        key_of("SOME_KEY")
    assert "PLANTED" not in str(error.value)
    assert error.value.remedy


@pytest.mark.parametrize(
    "given",
    [
        "",
        "localhost:8000",
        "http://",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:port",
        "http://user:PLANTED@127.0.0.1:9",
        "http://user:PLANTED@127.0.0.1:port",
        "http://127.0.0.1:9/v1?key=PLANTED",
        "http://127.0.0.1:9/#PLANTED",
    ],
)
@pytest.mark.parametrize("host", ["vllm", "ollama"])
def test_an_address_that_is_none_is_refused_and_no_record_is_made(adapter: AdapterFacts, given: str, host: str) -> None:
    with pytest.raises(DeployError) as error:
        server_address(given, f"{host}:http://HOST:PORT", "VLLM_API_KEY")
    assert "PLANTED" not in str(error.value)
    assert error.value.remedy


async def test_a_password_in_an_address_reaches_no_record(adapter: AdapterFacts) -> None:
    run = adapter.directory.parents[1]
    with pytest.raises(DeployError, match="holds a user or password"):
        await deploy(run, adapter, "vllm:http://user:PLANTED@127.0.0.1:9")
    assert not (run / DEPLOYMENTS).exists()


@pytest.mark.parametrize(
    ("spellings", "place"),
    [
        (["vllm:http://127.0.0.1:9", "vllm:http://127.0.0.1:9/", "vllm:http://127.0.0.1:9/v1/"], "http://127.0.0.1:9"),
        (["vllm:http://proxy:9/gpu/v1", "vllm:http://proxy:9/gpu/"], "http://proxy:9/gpu"),
        (["wandb:team/desk", "wandb:team/desk/"], "team/desk"),
        (["huggingface:team", "huggingface:team/"], "team"),
    ],
)
def test_spellings_of_one_place_are_one_deployment(spellings: list[str], place: str) -> None:
    assert {open_host(each).place for each in spellings} == {place}


def test_an_account_of_fireworks_has_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fireworks")
    monkeypatch.setenv("FIREWORKS_ACCOUNT_ID", "desk")
    spellings = ["fireworks", "fireworks:desk", "fireworks:desk/", "fireworks:accounts/desk"]
    assert {open_host(each).place for each in spellings} == {"desk"}
    with pytest.raises(DeployError, match="no name of an account"):
        open_host("fireworks:https://app.fireworks.ai/desk")
