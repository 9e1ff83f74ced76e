"""The adapter's facts, and the journal of a deployment."""

from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.deploy.record import (
    AdapterFacts,
    DeployError,
    DeploymentRecord,
    find_records,
    open_record,
    read_facts,
    read_record,
    read_records,
)
from tests.trainer.deploy.conftest import write_adapter


def opened(run: Path, adapter: AdapterFacts, **options: Any) -> DeploymentRecord:
    return open_record(run, host="vllm", address="vllm:http://a", adapter=adapter, options=options)


def test_names_are_the_same_at_every_attempt_and_differ_by_weights(run: Path, adapter: AdapterFacts) -> None:
    record = opened(run, adapter)
    assert record.remote_name == opened(run, adapter).remote_name
    assert len(record.remote_name) <= 63
    assert set(record.remote_name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    write_adapter(adapter.directory, fill=1)
    other = read_facts(adapter.directory, project="desk", name="clerk", step=12, base_model=adapter.base_model)
    assert opened(run, other).remote_name != record.remote_name
    assert opened(run, other).id != record.id


def test_an_odd_name_still_gives_a_plain_one(run: Path) -> None:
    directory = write_adapter(run / "x")
    facts = read_facts(directory, project="Büro/" + "x" * 90, name="…", step=123456, base_model="b")
    name = opened(run, facts).remote_name
    assert len(name) <= 63
    assert name.replace("-", "").isalnum()
    assert name.isascii()


def test_other_options_go_on_with_the_same_deployment(run: Path, adapter: AdapterFacts) -> None:
    first = opened(run, adapter, a=1)
    first.begin()
    again = opened(run, adapter, a=2)
    assert (again.id, again.made, again.options) == (first.id, True, {"a": 2})


def test_an_undeployed_record_begins_anew(run: Path, adapter: AdapterFacts) -> None:
    record = opened(run, adapter)
    record.state = "undeployed"
    record.begin()
    assert not opened(run, adapter).made


def test_records_are_listed_in_the_order_of_their_beginning(run: Path, adapter: AdapterFacts) -> None:
    for at in (2, 0, 1):
        record = open_record(run, host="vllm", address=f"vllm:http://{at}", adapter=adapter, options={"at": at})
        record.begun = float(at)
        record.save()
    assert [record.options["at"] for record in read_records(run)] == [0, 1, 2]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format_version": 1}', '{"format_version": 2}'])
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
        opened(run, adapter).begin()


def test_records_are_found_by_run_by_id_and_all(run: Path, adapter: AdapterFacts) -> None:
    root = run.parents[1]
    assert find_records(root, None) == []
    record = open_record(run, host="vllm", address="vllm:http://a", adapter=adapter, options={})
    record.save()
    for named in ("desk/clerk", str(run), None):
        assert [each.id for each in find_records(root, named)] == [record.id]
    assert [each.id for each in find_records(root, record.id, by_id=True)] == [record.id]
    with pytest.raises(DeployError, match="no deployment or run 'x'"):
        find_records(root, "x", by_id=True)


def test_facts_are_those_of_the_files(adapter: AdapterFacts) -> None:
    assert (adapter.rank, adapter.targets) == (8, ("q_proj", "v_proj"))
    assert adapter.size == (adapter.directory / "adapter_model.safetensors").stat().st_size
    assert [file.name for file in adapter.files()] == ["adapter_config.json", "adapter_model.safetensors"]
    assert not adapter.base_is_local


@pytest.mark.parametrize("damage", ["no config", "no json", "cut weights", "no lora"])
def test_what_is_no_adapter_is_refused_with_its_name(adapter: AdapterFacts, damage: str) -> None:
    config, weights = adapter.files()
    match damage:
        case "no config":
            config.unlink()
        case "no json":
            config.write_text("[1]")
        case "cut weights":
            weights.write_bytes(weights.read_bytes()[:20])
        case _:
            weights.write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(DeployError, match=str(adapter.directory)):
        read_facts(adapter.directory, project="desk", name="clerk", step=12, base_model="Qwen/Qwen3-8B")


def test_a_built_in_base_is_local(tmp_path: Path, adapter: AdapterFacts) -> None:
    for base in (str(tmp_path), "embedded/returns-desk"):
        facts = read_facts(adapter.directory, project="p", name="n", step=1, base_model=base)
        assert facts.base_is_local
