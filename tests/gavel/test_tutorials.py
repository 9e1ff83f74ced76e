"""Every tutorial and how-to is walked as it is written, in an empty directory (`make test-docs`)."""

from pathlib import Path

import pytest

from tests.gavel.page_walker import Walk, steps

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page for folder in ("tutorials", "how-to") for page in (DOCS / folder).glob("*.md"))
PAGES += [DOCS / name for name in ("index.md", "install.md", "faq.md", "troubleshooting.md", "agents.md", "art.md")]


@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    blocks = [step for step in steps(page) if step.language in ("bash", "python")]
    if not blocks:
        pytest.skip("no block to run")
    with Walk(tmp_path) as walk:
        ran = walk.page(page)
    assert ran == sum(step.title is None and step.mode != "skip" for step in blocks)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_python_is_python(page: Path) -> None:
    for step in steps(page):
        if step.language == "python":
            compile(step.text, f"{page.name}:{step.line}", "exec", flags=0x2000)  # top-level await
