"""The adapter's facts and the record of a deployment; how a host is named, asked, looked at and told of."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gavel.base.extras import install_line
from gavel.trainer.deploy.deploy import deploy
from gavel.trainer.deploy.host import open_host
from gavel.trainer.deploy.record import DEPLOYMENTS, AdapterFacts, DeployError, find_records, open_record, read_record
from tests.trainer.deploy.conftest import facts, write_adapter


def opened(run: Path, adapter: AdapterFacts, **options: Any) -> Any:
    return open_record(run, address="vllm:http://a", adapter=adapter, options=options)


def test_names_are_the_same_at_every_attempt_and_differ_by_weights(run: Path, adapter: AdapterFacts) -> None:
    record = opened(run, adapter)
    assert record.remote_name == opened(run, adapter).remote_name
    odd = replace(adapter, project="Büro/" + "x" * 90, name="…", step=123456)
    for each in (record, opened(run, odd)):
        assert len(each.remote_name) <= 63
        assert set(each.remote_name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    other = opened(run, facts(write_adapter(adapter.directory, fill=1)))
    assert other.remote_name != record.remote_name
    assert other.id != record.id


def test_other_options_go_on_with_the_same_deployment(run: Path, adapter: AdapterFacts) -> None:
    first = opened(run, adapter, a=1)
    first.save(price="1 USD")
    again = opened(run, adapter, a=2)
    assert (again.id, again.price, again.options) == (first.id, "1 USD", {"a": 2})


@pytest.mark.parametrize("text", ["", "[]", '{"format_version": 2}'])
def test_a_file_that_is_no_record_is_named(run: Path, text: str) -> None:
    file = run / "deployments" / "vllm-000001-abcdefgh.json"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(DeployError, match="vllm-000001"):
        read_record(file)


def test_two_processes_do_not_work_on_one_deployment(run: Path, adapter: AdapterFacts) -> None:
    record = opened(run, adapter)
    with record.locked(), pytest.raises(DeployError, match="another process"), opened(run, adapter).locked():
        pass


def test_a_record_that_cannot_be_written_stops_before_anything_is_made(run: Path, adapter: AdapterFacts) -> None:
    (run / "deployments").write_text("in the way")
    with pytest.raises(DeployError, match="cannot be written"):
        opened(run, adapter).save()


@pytest.mark.parametrize("damage", ["no config", "cut weights", "no lora"])
def test_what_is_no_adapter_is_refused_with_its_name(adapter: AdapterFacts, damage: str) -> None:
    config, weights = adapter.files()
    if damage == "no config":
        config.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:20] if damage == "cut weights" else b"\2" + bytes(7) + b"{}")
    with pytest.raises(DeployError, match=str(adapter.directory)):
        facts(adapter.directory)


@pytest.mark.parametrize("given", ["localhost:8000", "http://user:PLANTED@127.0.0.1:9", "http://h/v1?key=PLANTED"])
async def test_an_address_that_is_none_is_refused_and_no_record_is_made(run, adapter, given: str) -> None:
    with pytest.raises(DeployError) as error:
        await deploy(run, adapter, f"vllm:{given}")
    assert "PLANTED" not in str(error.value)
    assert error.value.remedy
    assert not (run / DEPLOYMENTS).exists()


@pytest.mark.parametrize(
    ("spellings", "place"),
    [
        (["vllm:http://127.0.0.1:9", "vllm:http://127.0.0.1:9/", "vllm:http://127.0.0.1:9/v1/"], "http://127.0.0.1:9"),
        (["vllm:http://proxy:9/gpu/v1", "vllm:http://proxy:9/gpu/"], "http://proxy:9/gpu"),
        (["fireworks", "fireworks:desk", "fireworks:desk/", "fireworks:accounts/desk"], "desk"),
    ],
)
def test_spellings_of_one_place_are_one_deployment(spellings, place, monkeypatch):
    monkeypatch.setenv("FIREWORKS_ACCOUNT_ID", "desk")
    if place == "desk":
        pytest.importorskip("fireworks")
    assert {open_host(each).place for each in spellings} == {place}


@pytest.mark.parametrize(
    ("address", "options", "remedy"),
    [
        ("together", {"inactive_minutes": 5}, "30"),
        ("fireworks:https://app.fireworks.ai/desk", {}, "fireworks:ACCOUNT"),
        ("fireworks:desk", {"idle_minutes": 1}, "5"),
        ("wandb:desk", {}, "wandb:TEAM/PROJECT"),
    ],
)
def test_a_place_or_an_option_that_is_none_is_refused(address: str, options: dict[str, object], remedy: str) -> None:
    with pytest.raises(DeployError) as refusal:
        open_host(address, **options)
    assert remedy in refusal.value.remedy


@pytest.mark.parametrize("address", ["together", "fireworks:desk"])
async def test_without_its_package_a_host_says_what_to_install(run, adapter, address, monkeypatch):
    monkeypatch.setitem(sys.modules, address.partition(":")[0], None)
    with pytest.raises(DeployError) as refusal:
        await deploy(run, adapter, address)
    assert install_line("deploy") in refusal.value.remedy


def test_a_name_that_is_no_deployment_is_told(run):
    with pytest.raises(DeployError, match="no deployment or run 'x'"):
        find_records(run.parents[1], "x")
