"""The same code runs on both sides: what is installed here, or a wheel of the checkout."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gavel.trainer.backends.skypilot import own_package as module
from gavel.trainer.backends.skypilot.cluster_settings import ClusterError
from gavel.trainer.backends.skypilot.own_package import OwnPackage, own_package


@pytest.mark.slow
def test_a_checkout_becomes_a_wheel_once_with_all_that_a_cluster_needs(tmp_path: Path) -> None:
    package = own_package(tmp_path)
    assert package.wheel is not None
    names = set(zipfile.ZipFile(package.wheel).namelist())
    ours = "gavel/trainer/backends/skypilot/"
    assert {f"{ours}run.sh", f"{ours}setup.sh", f"{ours}backend.py", "gavel/cli/backend.py"} <= names
    assert not [name for name in names if name.startswith("tests")]
    built = package.wheel.stat().st_mtime_ns
    assert own_package(tmp_path) == package
    assert package.wheel.stat().st_mtime_ns == built


def installed(monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any]) -> None:
    class Distribution:
        version = "1.2"

        def read_text(self, name: str) -> str:
            assert name == "direct_url.json"
            return json.dumps(origin)

    monkeypatch.setattr(module, "_checkout", lambda: None)
    monkeypatch.setattr(module, "distribution", lambda _: Distribution())


def test_a_release_is_its_version_and_a_commit_is_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, {})
    assert own_package(tmp_path).shell_word(extras=True) == "'gavel-rl[service,train]==1.2'"
    origin = {"url": "https://host/gavel.git", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}
    installed(monkeypatch, origin)
    assert own_package(tmp_path).shell_word(extras=False) == "'gavel-rl @ git+https://host/gavel.git@abc123'"
    installed(monkeypatch, {"url": "https://host/gavel.whl"})
    assert own_package(tmp_path).shell_word(extras=False) == "'gavel-rl @ https://host/gavel.whl'"


def test_a_wheel_is_taken_as_it_is_and_one_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "gavel_rl-1.2-py3-none-any.whl"
    installed(monkeypatch, {"url": wheel.as_uri()})
    with pytest.raises(ClusterError, match="which is not there any more"):
        own_package(tmp_path)
    wheel.write_bytes(b"wheel")
    assert own_package(tmp_path).wheel == wheel


def test_a_wheel_s_path_is_found_by_the_shell_of_the_other_machine() -> None:
    package = OwnPackage("id", wheel=Path("/here/gavel_rl-1.2-py3-none-any.whl"))
    assert package.shell_word(extras=True) == (
        "\"$HOME\"/'.gavel/wheels/id/gavel_rl-1.2-py3-none-any.whl[service,train]'"
    )
    assert package.shell_word(extras=False, directory='"$wheels"') == '"$wheels"/gavel_rl-1.2-py3-none-any.whl'
