"""`import gavel` in processes of their own: what it loads, and what it leaves to the user's own modules."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gavel
from tests.limits import HANG_SECONDS

HEAVY = ("litellm", "torch", "transformers", "peft", "wandb", "sky", "fastapi")
PRINT_LOADED = f"import sys; print(*(name for name in {(*HEAVY, 'openai')!r} if name in sys.modules))"


def run(directory: Path, script: str, name: str = "script.py") -> subprocess.CompletedProcess[str]:
    (directory / name).write_text(script)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    given = {"cwd": directory, "env": env, "timeout": HANG_SECONDS}
    return subprocess.run([sys.executable, name], capture_output=True, text=True, check=False, **given)


def test_importing_gavel_loads_nothing_heavy(tmp_path: Path):
    done = run(tmp_path, f"import gavel; {PRINT_LOADED}; gavel.Judge('stand-in'); gavel.Scenario; {PRINT_LOADED}")
    first, judge = done.stdout.splitlines()
    assert first == ""
    assert not {"torch", "transformers", "peft", "wandb"} & set(judge.split())


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        pytest.param(["score", "rows.jsonl", "--rubric", '- says "a"'], marks=pytest.mark.slow),
        pytest.param(["check", "returns_desk", "--judge", "stand-in"], marks=pytest.mark.slow),
        pytest.param(["train", "returns_desk", "--judge", "stand-in", "--dry-run"], marks=pytest.mark.slow),
    ],
    ids=lambda command: command[0],
)
def test_a_command_without_a_model_loads_nothing_heavy(tmp_path: Path, command: list[str]):
    rows = [{"prompt": "q", "completion": text} for text in ("a", "b")]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    call = f"import sys\nfrom gavel.cli import main\nsys.argv = ['gavel', *{command!r}]\ntry:\n    main()\n"
    done = run(tmp_path, f"{call}except SystemExit as ended:\n    assert not ended.code\n{PRINT_LOADED}")
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout.splitlines()[-1].split()) & set(HEAVY)


def test_every_public_name_is_there_and_listed_and_no_other():
    for name in (*gavel.__all__, "__version__"):
        assert getattr(gavel, name) is not None
    assert set(gavel.__all__) - {"__version__"} <= set(dir(gavel))
    with pytest.raises(AttributeError, match="Juge"):
        gavel.Juge  # type: ignore[attr-defined] # noqa: B018


USE_EVERY_PART = """
import asyncio
import gavel

member = [{"role": "user", "content": "hello"}]
members = [gavel.Trajectory(messages_and_choices=[*member, {"role": "assistant", "content": c}]) for c in ("hi", "")]
judged = asyncio.run(gavel.Judge("stand-in", rubric="- ends with a message").score(gavel.TrajectoryGroup(members)))
assert judged.judgement.status == "scored"
assert gavel.find_scenario("returns_desk").system
assert gavel.TrainConfig and gavel.TrainableModel
print("done")
"""
THEIRS = "raise RuntimeError('a module of the user was imported in place of one of Gavel')"


@pytest.mark.slow
@pytest.mark.parametrize("script", ["script.py", "judge.py"])
def test_a_users_own_names_harm_nothing_and_a_scenario_files_own_import_finds_them(tmp_path: Path, script: str):
    here = tmp_path / "here"
    (here / "scenarios").mkdir(parents=True)
    (here / "prompts").mkdir()
    for name in ("trainer.py", "prompts/__init__.py"):
        (here / name).write_text(THEIRS)
    (tmp_path / "prompts.py").write_text("SYSTEM = 'You are polite.'")
    (tmp_path / "mine.py").write_text(
        "import gavel\nfrom prompts import SYSTEM\n"
        "mine = gavel.Scenario(name='mine', system=SYSTEM, tasks=[gavel.Task(user=str(n)) for n in range(5)])\n"
    )
    done = run(here, f"{USE_EVERY_PART}print(gavel.find_scenario({str(tmp_path / 'mine.py')!r}).system)", script)
    assert done.stdout == "done\nYou are polite.\n", done.stderr


@pytest.mark.slow
def test_a_missing_extra_is_named_with_the_line_that_installs_it(tmp_path: Path):
    without = "import sys; sys.modules['torch'] = None; import gavel"
    assert run(tmp_path, f"{without}; gavel.Model; gavel.TrainConfig; gavel.Judge").returncode == 0
    done = run(tmp_path, f"{without}; gavel.LocalBackend")
    assert "gavel.LocalBackend needs torch, which is not installed." in done.stderr
    assert "pip install" in done.stderr
    assert "[train]'" in done.stderr
