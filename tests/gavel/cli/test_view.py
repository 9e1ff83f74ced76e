"""`gavel view` as a process of its own, over a run that goes on."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gavel.scenarios.group import to_line
from tests.gavel.reports.made import RUN, group, member, run_directory, store
from tests.limits import HANG_SECONDS, wait_until

pytestmark = pytest.mark.slow


@contextmanager
def viewing(tmp_path: Path, *arguments: str, shown: str = "runs") -> Iterator[tuple[str, httpx.Client]]:
    """The address that it prints, and a client."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "gavel", "view", str(tmp_path / shown), "--port", "0", "--no-open", *arguments]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    address = None
    while address is None:  # what it waits for may come first
        line = process.stdout.readline()
        assert line
        address = re.search(r"http://\S+", line)
    try:
        with httpx.Client(trust_env=False, timeout=HANG_SECONDS, follow_redirects=True) as client:
            yield address[0], client
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=HANG_SECONDS)


def test_it_shows_runs_and_what_they_add_while_they_go_on(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    run_directory(root)
    with viewing(tmp_path) as (address, client):
        assert RUN in client.get(address).text
        wait_until(lambda: "4 groups" in client.get(f"{address}/groups").text)
        store(root, 3).append(group(member("a new word: xylophone", 0.5, task="later")))
        wait_until(lambda: "1 group<" in client.get(f"{address}/groups?q=xylophone").text.replace("\n", ""))
        assert client.get(address, headers={"Host": "evil.example"}).status_code == 421
    assert list((tmp_path / "cache" / "gavel" / "view").glob("*.sqlite"))


def test_beyond_this_machine_the_address_has_a_token(tmp_path: Path) -> None:
    run_directory(tmp_path / "runs")
    with viewing(tmp_path, "--host", "0.0.0.0") as (address, client):
        address = address.replace("0.0.0.0", "127.0.0.1")
        assert client.get(address.partition("?")[0]).status_code == 403
        assert RUN in client.get(address).text
        assert "token" not in str(client.get(address).url)


@pytest.mark.parametrize(("shown", "groups"), [("runs/desk", 4), ("runs/judged.jsonl", 1)])
def test_a_project_a_run_and_a_file_can_be_named(tmp_path: Path, shown: str, groups: int) -> None:
    run_directory(tmp_path / "runs")
    run_directory(tmp_path / "runs", run="another/run")
    (tmp_path / "runs" / "judged.jsonl").write_text(to_line(group(member("x", 0.5))) + "\n")
    with viewing(tmp_path, shown=shown) as (address, client):
        wait_until(lambda: f"{groups} group" in client.get(f"{address}/groups").text)
        first = client.get(address).text
        assert "another/run" not in first
        assert (RUN in first) == shown.startswith("runs/desk")
