"""The site: built strictly, from the site's own files alone; its generated pages name all that the program has."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gavel
from gavel.trainer.runs import run_directory
from tests.limits import HANG_SECONDS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
from generate import commands, environment, llms, public_names, repository  # noqa: E402


@pytest.mark.docs
def test_every_file_of_a_run_directory_has_a_row() -> None:
    page = (ROOT / "docs" / "reference" / "run-directory.md").read_text()
    owned = {name for name in run_directory._OWN | run_directory._KEPT if not name.endswith(("-wal", "-shm"))}
    named = {name.rstrip("/") for name in re.findall(r"`([\w.-]+/?)(?:<[^`]*)?`", page)} | {
        "trajectories",
        "checkpoints",
    }
    assert owned - named == set()


@pytest.mark.docs
def test_every_environment_variable_of_the_code_is_listed() -> None:
    page = environment.page()
    read = set()
    for file in (ROOT / "gavel").rglob("*.py"):
        read |= set(re.findall(r"\"(GAVEL_[A-Z_0-9]+[A-Z0-9])\"", file.read_text()))
    assert {name for name in read if f"`{name}`" not in page and not name.startswith("GAVEL_SERVICE_")} == set()


def test_a_link_out_of_the_pages_is_mended_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    links = "[a](../../benchmarks/RESULTS.md#x) [`b[0]`](../../Makefile) [`Makefile`](../../Makefile) ![c](../judge.md)"
    monkeypatch.setattr(repository, "PUBLIC", "")
    mended = repository.relinked(links, "how-to/a.md", "docs/how-to/a.md")
    assert mended == "[a](../notebook.md#x) `b[0]` (`Makefile`) `Makefile` ![c](../judge.md)"
    monkeypatch.setattr(repository, "PUBLIC", "https://forge/")
    mended = repository.relinked(links, "how-to/a.md", "docs/how-to/a.md")
    assert "[`b[0]`](https://forge/Makefile) [`Makefile`](https://forge/Makefile)" in mended
    with pytest.raises(repository.DeadLinkError, match="nowhere"):
        repository.relinked("[a](../nowhere.py)", "a.md", "docs/a.md")


@pytest.mark.slow
def test_the_reference_for_agents_names_all_and_stays_short() -> None:
    text = llms.reference()
    assert [name for name in public_names.public_names() if f"gavel.{name}" not in text] == []
    assert [each.name for each in commands.commands() if each.name not in text] == []
    assert "loop.group_size = 8" in text
    assert "train.learning_rate" in text
    assert len(text) < 120_000


@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "COLUMNS": "120"}
    built = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=3 * HANG_SECONDS)
    assert built.returncode == 0, built.stderr + built.stdout
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=\"(https?:[^\"]*)\"", text)
        loaded += re.findall(r"<link[^>]*rel=\"(?:stylesheet|preconnect|icon)\"[^>]*href=\"(https?:[^\"]*)\"", text)
        assert loaded == [], page
    api = (tmp_path / "site" / "reference" / "api" / "index.html").read_text()
    assert [name for name in gavel.__all__ if f"gavel.{name}" not in api and name != "__version__"] == []
    index = (tmp_path / "site" / "llms.txt").read_text()
    assert index.startswith("# Gavel\n\n> ")
    assert "[Your own scenario in 20 minutes](" in index
    assert "gavel.Judge" in (tmp_path / "site" / "llms-reference.txt").read_text()
    assert "Stop and resume a run" in (tmp_path / "site" / "search" / "search_index.json").read_text()
