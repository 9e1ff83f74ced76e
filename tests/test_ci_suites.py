"""Which slow suites run before `make test`, and what happens when one fails, hangs or cannot be installed."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / ".ci"))
import suites  # noqa: E402  # pyright: ignore[reportMissingImports]

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    def call(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    call("init", "--quiet", "--initial-branch", "main")
    return call


def commit(git: Git, folder: Path, path: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(path)
    git("add", "-A")
    git("commit", "--quiet", "-m", path)


def three(minutes: int) -> list:
    return [suites.Suite(name, minutes, (f"{name}/",)) for name in ("a", "b", "c")]


@pytest.mark.parametrize(
    ("changed", "turn", "first"),
    [([], 0, "abc"), ([], 1, "bca"), (["c/x.py", "README.md"], 0, "cab"), (["a/x", "b/x"], 1, "bac"), (None, 1, "bca")],
)
def test_what_the_changes_touch_runs_first_and_the_others_take_turns(
    changed: list[str] | None, turn: int, first: str
) -> None:
    assert "".join(suite.name for suite, _ in suites.ordered(three(1), changed, turn)) == first


def test_each_file_of_thorough_tests_is_run_by_a_suite() -> None:
    texts = [
        suite.tests + run["tests"] for suite in suites.table()[1] for run in suite.runs if suite.marker == "thorough"
    ]
    run = " ".join(texts).split()
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.thorough" in path.read_text()]
    marked.remove(Path(__file__))
    left_out = [path for path in marked if not any((ROOT / word) in (path, *path.parents) for word in run)]
    assert left_out == []


@pytest.mark.parametrize(("minutes", "slowness", "ran"), [(9, 1.0, "abc"), (7, 1.0, "ab"), (9, 2.0, "a")])
def test_a_suite_starts_while_its_limit_is_left_and_a_failure_stops_none(
    monkeypatch: pytest.MonkeyPatch, minutes: int, slowness: float, ran: str
) -> None:
    now, started = 1000.0, []

    def run(suite: object, limit: float) -> bool:  # which may take 3 minutes
        nonlocal now
        started.append(suite.name)  # type: ignore[attr-defined]
        assert limit == 3 * slowness
        now += 150 * slowness
        return len(started) > 1

    monkeypatch.setattr(suites.time, "monotonic", lambda: now)
    monkeypatch.setattr(suites, "run", run)
    assert not suites.run_in_time([(suite, "its turn") for suite in three(3)], 60 * minutes, slowness=slowness)
    assert "".join(started) == ran


def test_the_base_is_the_last_tag_else_the_last_merge_else_the_oldest_of_thirty_commits(
    git: Git, tmp_path: Path
) -> None:
    assert (suites.changed_files(tmp_path), suites.commit_count(tmp_path)) == (None, 0)
    for number in range(33):
        commit(git, tmp_path, f"f{number:02}")
    assert suites.changed_files(tmp_path) == [f"f{number:02}" for number in range(3, 33)]
    git("checkout", "--quiet", "-b", "side", "HEAD~1")
    commit(git, tmp_path, "side/one")
    git("checkout", "--quiet", "main")
    git("merge", "--quiet", "--no-ff", "-m", "merge", "side")
    commit(git, tmp_path, "five")
    assert suites.changed_files(tmp_path) == ["five"]
    git("tag", "v1", "HEAD~2")
    assert suites.changed_files(tmp_path) == ["five", "side/one"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose Python is this one, with tests that pass and tests that fail."""
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    for name, body in (("good", "assert True"), ("bad", "assert False"), ("endless", "__import__('time').sleep(600)")):
        (tmp_path / f"test_{name}.py").write_text(f"def test_it():\n    {body}\n")
    return tmp_path


@pytest.fixture(autouse=True)
def no_make_above(monkeypatch: pytest.MonkeyPatch) -> None:
    """A make that runs these tests hands its options to those that they run."""
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(("first", "said"), [("good", "passed"), ("bad", "FAILED")])
def test_a_suite_passes_where_all_of_its_runs_do(capfd: pytest.CaptureFixture[str], first: str, said: str) -> None:
    runs = [{"tests": f"test_{name}.py"} for name in (first, "good")]
    assert suites.run(suites.Suite("s", 1, runs=runs), 1) is (first == "good")
    assert f"Suite s {said} (make test-s)." in capfd.readouterr().err


@pytest.mark.usefixtures("root")
def test_a_suite_that_cannot_be_installed_is_skipped_aloud_and_one_that_hangs_is_killed_with_its_processes(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suites, "table", lambda: ({"e": {}}, []))
    monkeypatch.setattr(suites, "_environment_commands", lambda name: [["false", name]])
    assert suites.run(suites.Suite("s", 1, runs=[{"environment": "e", "tests": "test_bad.py"}]), 1)
    assert "SKIPPED: suite s" in capfd.readouterr().err
    assert suites.test(suites.Suite("s", 1, runs=[{"tests": "test_endless.py"}]), seconds=2) is None


def test_what_every_suite_needs_is_installed_before_the_first_one_starts(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (root / "Makefile").write_text(f"{suites.INSTALL}:\n\t@echo installed\nlint:\n\t@echo $@\n")
    monkeypatch.setattr(suites, "table", lambda: ({}, three(1)))
    monkeypatch.setattr(suites, "run", lambda suite, _: print(suite.name, flush=True) or True)
    assert suites.main([]) == 0
    made = capfd.readouterr().out.split()
    assert (made[:2], set(made[2:])) == (["installed", "lint"], {"a", "b", "c"})


def test_the_table_names_tests_and_paths_that_exist_and_fits_the_time() -> None:
    environments, all_suites = suites.table()
    makefile = (ROOT / "Makefile").read_text()
    assert f"\nDEV := {suites.INSTALL}\n" in makefile
    for suite in all_suites:
        assert f"make test-{suite.name} " in makefile
        tests = [word for run in suite.runs for word in (suite.tests + " " + run.get("tests", "")).split()]
        named = [*suite.paths, *(word for word in tests if word.startswith("tests/"))]
        assert [path for path in named if not (ROOT / path).exists()] == []
        assert [run for run in suite.runs if run.get("environment", "verl") not in environments] == []
        assert suite.minutes <= suites.SUITES_MINUTES
