"""What is built holds what is needed at run time."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_wheel_ships_the_embedded_policy_and_every_template(tmp_path: Path) -> None:
    source = tmp_path / "source"
    files = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], check=True, capture_output=True, text=True
    ).stdout.split()
    for name in files:
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to((ROOT / name).readlink())
        else:
            target.write_bytes((ROOT / name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
    ]
    subprocess.run([*command, str(source)], check=True, timeout=600)
    (wheel,) = tmp_path.glob("gavel_rl-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    shipped = (".j2", ".safetensors", ".json", ".toml", ".pyi")
    needed = {name for name in files if name.endswith(shipped) or "/returns_desk/" in name}
    needed = {name for name in needed if name.startswith("gavel/")}
    assert needed
    assert needed <= held
    assert {name.partition("/")[0] for name in held if ".dist-info/" not in name} == {"gavel"}
    assert "gavel/py.typed" in held
