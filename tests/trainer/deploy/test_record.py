"""The adapter's facts and the record of a deployment; how a host is named, asked, looked at and told of."""

import shutil
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


def test_names_are_the_same_at_every_attempt_with_other_options_too_and_differ_by_weights(run, adapter) -> None:
    record = opened(run, adapter, a=1)
    record.save(price="1 USD")
    again = opened(run, adapter, a=2)
    assert (again.id, again.remote_name) == (record.id, record.remote_name)
    assert (again.price, again.options) == ("1 USD", {"a": 2})
    odd = replace(adapter, project="Büro/" + "x" * 90, name="…", step=123456)
    for each in (record, opened(run, odd)):
        assert len(each.remote_name) <= 63
        assert set(each.remote_name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    other = opened(run, facts(write_adapter(adapter.directory, fill=1)))
    assert other.remote_name != record.remote_name
    assert other.id != record.id


def test_a_record_is_held_by_one_process_and_is_written_first_and_what_is_none_is_named(run: Path, adapter) -> None:
    with pytest.raises(DeployError, match="no deployment or run 'x'"):
        find_records(run.parents[1], "x")
    record = opened(run, adapter)
    with record.locked(), pytest.raises(DeployError, match="another process"), opened(run, adapter).locked():
        pass
    file = run / "deployments" / "vllm-000001-abcdefgh.json"
    for text in ("", "[]", '{"format_version": 2}'):
        file.write_text(text)
        with pytest.raises(DeployError, match="vllm-000001"):
            read_record(file)
    shutil.rmtree(run / "deployments")
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


@pytest.mark.parametrize(
    ("address", "options", "remedy"),
    [
        ("vllm:localhost:8000", {}, "http"),
        ("vllm:http://user:PLANTED@127.0.0.1:9", {}, "http"),
        ("vllm:http://h/v1?key=PLANTED", {}, "http"),
        ("together", {"inactive_minutes": 5}, "30"),
        ("fireworks:https://app.fireworks.ai/desk", {}, "fireworks:ACCOUNT"),
        ("fireworks:desk", {"idle_minutes": 1}, "5"),
        ("wandb:desk", {}, "wandb:TEAM/PROJECT"),
    ],
)
async def test_a_place_or_an_option_that_is_none_is_refused_unrecorded(run, adapter, address, options, remedy) -> None:
    with pytest.raises(DeployError) as error:
        await deploy(run, adapter, address, options=options)
    assert "PLANTED" not in str(error.value)
    assert remedy in error.value.remedy
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


@pytest.mark.parametrize("address", ["together", "fireworks:desk"])
async def test_without_its_package_a_host_says_what_to_install(run, adapter, address, monkeypatch):
    monkeypatch.setitem(sys.modules, address.partition(":")[0], None)
    with pytest.raises(DeployError) as refusal:
        await deploy(run, adapter, address)
    assert install_line("deploy") in refusal.value.remedy
