"""A backend on a cluster, from the launch to its end: on this machine, and through SkyPilot's interface."""

import asyncio
import contextlib
import os
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gavel.base.network import free_port
from gavel.trainer.backends.skypilot.backend import SkyPilotBackend
from gavel.trainer.backends.skypilot.cluster import ClusterError, ClusterRecord
from gavel.trainer.backends.skypilot.hosts import ThisMachine
from gavel.trainer.model import TrainableModel
from tests.fake_sky_cloud import FakeCloud
from tests.trainer.backends.test_conformance import a_group
from tests.trainer.conftest import a_model

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
SECRET = "hf_this_is_nobody_s_business"
KEY_OF_ANOTHER = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[dict[str, Any]]:
    host = ThisMachine()
    runs = str(tmp_path / "runs")
    yield {"accelerators": None, "host": host, "port": free_port(), "runs": runs, "patience": 60}
    for record in ClusterRecord.all():
        asyncio.run(host.down(record.cluster))


@contextlib.asynccontextmanager
async def launched(**options: Any) -> AsyncIterator[TrainableModel]:
    """A model on the cluster "mine"."""
    async with await SkyPilotBackend.launch("mine", **{"say": lambda _: None, **options}) as backend:
        model = a_model()
        await model.register(backend)
        yield model


async def test_two_nodes_learn_together_and_are_found_again_by_the_name_of_their_cluster(here: dict[str, Any]) -> None:
    async with launched(num_nodes=2, **here) as model:
        groups = [await a_group(model, 0.0, 1.0) for _ in range(2)]
        assert (await model.train(groups)).step == 1
    said: list[str] = []
    async with launched(num_nodes=2, **here, say=said.append) as model:
        assert await model.get_step() == 1
    assert said == []  # nothing was started
    async with await SkyPilotBackend.attach("mine", host=ThisMachine()) as attached:
        await model.register(attached)
        await attached.down()
    assert ClusterRecord.find("mine") is None
    with pytest.raises(ClusterError, match=r"(?s)known: none.*gavel cluster up mine"):
        await SkyPilotBackend.attach("mine")


async def test_a_server_that_ended_is_started_again_and_one_that_cannot_start_shows_its_log(here, tmp_path):
    async with launched(**here):
        before = ClusterRecord.find("mine")
        await here["host"].down("mine")
    async with launched(**here):
        after = ClusterRecord.find("mine")
    assert before.key == after.key
    assert before.job != after.job
    await here["host"].down("mine")
    shutil.rmtree(here["runs"])
    (tmp_path / "runs").write_text("no directory")
    with pytest.raises(ClusterError, match=r"(?s)server on mine has ended. Its log:.*gavel cluster logs mine"):
        await SkyPilotBackend.launch("mine", **here)


async def test_a_launch_of_the_sdk_trains_and_leaves_no_secret_and_its_tunnel_is_dug_again(
    cloud: FakeCloud, state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    said: list[str] = []
    more = {"port": free_port(), "runs": str(tmp_path / "runs"), "patience": 120}
    async with launched(secrets=["HF_TOKEN"], say=said.append, **more) as model:
        record = ClusterRecord.find("mine")
        key = record.key.get_secret_value()
        assert (await model.train([await a_group(model, 0.0, 1.0)])).step == 1
        running = {process: " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])}
        (server, *_) = [each for each, line in running.items() if " backend " in line and str(record.port) in line]
        environment = server.environ()
        assert (environment["HF_TOKEN"], environment["GAVEL_BACKEND_KEY"]) == (SECRET, key)
        shown = repr(model.backend)
        first = int((cloud.home / "ssh_process").read_text())
        os.kill(first, 9)
        await model.register(model.backend)
        assert int((cloud.home / "ssh_process").read_text()) != first
    told = "\n".join(said)
    assert told.index("2.49 USD an hour while it is on; stopped after 30 idle minutes") < told.index("Launching on")
    assert "Gavel backend" in cloud.log("mine")  # of which launch shows what comes before the server answers
    files = [file for root in (cloud.home, tmp_path, state) for file in root.rglob("*") if file.is_file()]
    (kept,) = {file for file in files if key.encode() in file.read_bytes()}
    assert kept == state / "clusters" / "mine.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
    for text in (told, *running.values(), cloud.log("mine"), shown, repr(record)):
        assert SECRET not in text
        assert key not in text


async def test_what_costs_more_than_was_said_is_not_started_and_a_cluster_of_another_s_key_is_told(cloud: FakeCloud):
    with pytest.raises(ClusterError, match=r"(?s)offered at 4.98 USD an hour, and 3.00 USD is the most"):
        await SkyPilotBackend.launch("mine", num_nodes=2, max_usd_per_hour=3.0, say=lambda _: None)
    assert not list(cloud.home.glob("*.json"))
    assert ClusterRecord.find("mine") is None
    more = {"port": free_port(), "say": lambda _: None}
    async with await SkyPilotBackend.launch("mine", **more):
        record = ClusterRecord.find("mine")
        ClusterRecord.delete("mine")
        with pytest.raises(ClusterError, match=r"(?s)was not started from here: its key is not known.*down mine"):
            await SkyPilotBackend.launch("mine", **more)
        ClusterRecord.model_validate({**record.model_dump(mode="json"), "key": KEY_OF_ANOTHER}).save()
        with pytest.raises(ClusterError, match="has another key than was kept here"):
            await SkyPilotBackend.attach("mine", say=lambda _: None)
