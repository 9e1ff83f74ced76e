"""What is built holds what is needed at run time."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parents[1]
FILES = subprocess.run(["git", "-C", str(ROOT), "ls-files"], check=True, capture_output=True, text=True).stdout.split()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of what is under version control."""
    source = tmp_path / "source"
    for name in FILES:
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        else:
            target.write_bytes((ROOT / name).read_bytes())
    return source


def test_a_wheel_ships_the_embedded_policy_and_every_template(tmp_path: Path, source: Path) -> None:
    options = ["--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True, timeout=HANG_SECONDS)
    (wheel,) = tmp_path.glob("gavel_rl-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    shipped = (".css", ".j2", ".js", ".json", ".pyi", ".safetensors", ".svg", ".toml")
    needed = {name for name in FILES if name.endswith(shipped) or "/returns_desk/" in name}
    needed = {name for name in needed if name.startswith("gavel/")}
    assert needed
    assert needed <= held
    assert {name.partition("/")[0] for name in held if ".dist-info/" not in name} == {"gavel"}
    assert "gavel/py.typed" in held


@pytest.mark.parametrize("file", sorted((ROOT / "constraints").glob("*.txt")), ids=lambda file: file.stem)
def test_a_constraints_file_has_versions_and_no_address_and_all_that_its_extra_asks_for(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9.-]+==[\w.]+", line)] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + project["optional-dependencies"].get(file.stem, [])
    names = {re.split(r"[^\w-]", requirement)[0].lower().replace("_", "-") for requirement in asked} - {"gavel-rl"}
    assert names - {line.partition("==")[0] for line in lines} == set()


def test_an_editable_install_comes_before_a_folder_of_its_name_and_offers_nothing_else(
    tmp_path: Path, source: Path
) -> None:
    build = "import sys; from setuptools import build_meta; print(build_meta.build_editable(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=source, check=True, timeout=HANG_SECONDS)
    (wheel,) = tmp_path.glob("gavel_rl-*.whl")
    with zipfile.ZipFile(wheel) as held:
        (line,) = [held.read(name).decode() for name in held.namelist() if name.endswith(".pth")]
    folder = Path(line.strip())
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".egg-info") == ["gavel"]
    (tmp_path / "user" / "gavel").mkdir(parents=True)
    (tmp_path / "user" / "gavel" / "notes.txt").write_text("A folder of data.")
    script = f"import sys; sys.path.insert(1, {str(folder)!r}); import gavel; print(gavel.__file__)"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    given = {"cwd": tmp_path / "user", "env": env, "timeout": HANG_SECONDS}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, **given)
    assert done.stdout.strip() == str(folder / "gavel" / "__init__.py"), done.stderr
