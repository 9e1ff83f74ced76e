import json
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.deploy.record import (
    AdapterFacts,
    DeployError,
    DeploymentRecord,
    open_record,
    read_facts,
    read_record,
    read_records,
)
from tests.trainer.deploy.conftest import write_adapter


def opened(run: Path, adapter: AdapterFacts, **options: Any) -> DeploymentRecord:
    return open_record(run, host="vllm", address="vllm:http://a", adapter=adapter, options=options)


class Host:
    """Something with names that may be made, whose answer may be lost."""

    def __init__(self) -> None:
        self.made: list[str] = []

    async def find(self) -> dict[str, Any] | None:
        return {"model": self.made[0]} if self.made else None

    async def make(self) -> dict[str, Any]:
        self.made.append("m1")
        return {"model": "m1"}

    async def make_and_die(self) -> dict[str, Any]:
        await self.make()
        raise KeyboardInterrupt


async def test_a_stage_is_made_once_and_survives_the_process(run: Path, adapter: AdapterFacts) -> None:
    host, record = Host(), opened(run, adapter)
    assert await record.once("model", find=host.find, make=host.make) == {"model": "m1"}
    again = opened(run, adapter)
    assert again.done("model") == {"model": "m1"}
    await again.once("model", find=host.find, make=host.make)
    assert host.made == ["m1"]


async def test_what_was_made_before_a_crash_is_found_by_its_name(run: Path, adapter: AdapterFacts) -> None:
    host, record = Host(), opened(run, adapter)
    with pytest.raises(KeyboardInterrupt):
        await record.once("model", find=host.find, make=host.make_and_die)
    again = opened(run, adapter)
    assert again.begun_stage("model")
    assert again.done("model") is None
    assert await again.once("model", find=host.find, make=host.make) == {"model": "m1"}
    assert host.made == ["m1"]


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
    first.finish("model", id="m1")
    again = opened(run, adapter, a=2)
    assert (again.id, again.done("model"), again.options) == (first.id, {"id": "m1"}, {"a": 2})


def test_an_undeployed_record_begins_anew(run: Path, adapter: AdapterFacts) -> None:
    record = opened(run, adapter)
    record.state = "undeployed"
    record.finish("model", model="m1")
    assert opened(run, adapter).stages == {}


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
        opened(run, adapter).begin("model")


def test_a_record_is_plain_json(run: Path, adapter: AdapterFacts) -> None:
    record = opened(run, adapter)
    record.finish("model", id="m")
    assert json.loads(record.path.read_text())["stages"] == {"model": {"id": "m", "done": True}}
