"""`import gavel` in processes of their own: what it loads, and what it says when it cannot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gavel

HEAVY = ("litellm", "torch", "transformers", "peft", "wandb", "sky")
PRINT_LOADED = f"import sys; print(*(name for name in {(*HEAVY, 'openai')!r} if name in sys.modules))"


def run(directory: Path, script: str, name: str = "script.py") -> subprocess.CompletedProcess[str]:
    (directory / name).write_text(script)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, name], cwd=directory, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def test_importing_gavel_loads_nothing_heavy(tmp_path: Path):
    assert run(tmp_path, f"import gavel; {PRINT_LOADED}").stdout == "\n"


def test_help_loads_nothing_heavy(tmp_path: Path):
    done = run(
        tmp_path,
        f"import sys\nfrom gavel.cli import main\nsys.argv = ['gavel', '--help']\n"
        f"try:\n    main()\nexcept SystemExit: pass\n{PRINT_LOADED}",
    )
    assert "Usage" in done.stdout, done.stderr
    assert not set(done.stdout.splitlines()[-1].split()) & set(HEAVY)


def test_a_judge_can_be_made_without_loading_torch(tmp_path: Path):
    done = run(tmp_path, f"import gavel; gavel.Judge('stand-in'); gavel.Scenario; {PRINT_LOADED}")
    assert not {"torch", "transformers", "peft", "wandb"} & set(done.stdout.split()), done.stderr


def test_every_public_name_is_there_and_listed():
    for name in gavel.__all__:
        assert getattr(gavel, name) is not None
    assert set(gavel.__all__) <= set(dir(gavel))
    assert set(gavel._HOMES) | {"__version__"} == set(gavel.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Juge'"):
        gavel.Juge  # type: ignore[attr-defined] # noqa: B018


@pytest.mark.parametrize("floor", ["scenarios", "judge", "trainer", "prompts"])
def test_a_users_module_in_the_way_is_named(tmp_path: Path, floor: str):
    (tmp_path / f"{floor}.py").write_text("")
    done = run(tmp_path, "import gavel")
    assert done.returncode == 1
    assert f"{tmp_path / floor}.py takes the name of Gavel's own package '{floor}'" in done.stderr
    assert f"Rename it, {floor}_of_mine say." in done.stderr


def test_a_script_that_is_itself_in_the_way_is_named(tmp_path: Path):
    assert f"{tmp_path / 'judge.py'} takes the name" in run(tmp_path, "import gavel", name="judge.py").stderr


def test_a_package_in_the_way_is_named(tmp_path: Path):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "__init__.py").write_text("")
    assert f"{tmp_path / 'prompts' / '__init__.py'} takes the name" in run(tmp_path, "import gavel").stderr


def test_a_missing_extra_is_named_with_the_line_that_installs_it(tmp_path: Path):
    done = run(tmp_path, "import sys; sys.modules['torch'] = None; import gavel; gavel.LocalBackend")
    assert "gavel.LocalBackend needs torch, which is not installed." in done.stderr
    assert "pip install 'gavel-rl[train]'" in done.stderr


def test_what_needs_no_extra_works_without_one(tmp_path: Path):
    script = "import sys; sys.modules['torch'] = None; import gavel; gavel.Model; gavel.TrainConfig; gavel.Judge"
    assert run(tmp_path, script).returncode == 0
