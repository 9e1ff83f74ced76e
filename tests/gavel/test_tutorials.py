"""Every tutorial and how-to is walked as it is written, in an empty directory, and what any page types is taken."""

import re
import shlex
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.gavel.page_walker import Walk, steps

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
from generate.commands import commands  # noqa: E402

PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
WALKED = sorted(page for folder in ("tutorials", "how-to") for page in (DOCS / folder).glob("*.md"))
WALKED += [DOCS / name for name in ("index.md", "install.md", "faq.md", "troubleshooting.md", "agents.md", "art.md")]


@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", WALKED, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    blocks = [step for step in steps(page) if step.language in ("bash", "python")]
    if not blocks:
        pytest.skip("no block to run")
    with Walk(tmp_path) as walk:
        ran = walk.page(page)
    assert ran == sum(step.title is None and step.mode != "skip" for step in blocks)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_of_python_is_python(page: Path) -> None:
    for step in steps(page):
        if step.language == "python":
            compile(step.text, f"{page.name}:{step.line}", "exec", flags=0x2000)  # top-level await


_BLOCK = re.compile(r"^ *```(?:bash)?\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`(gavel [a-z][^`]*)`(?!`)")


@cache
def options() -> dict[str, set[str]]:
    """Command to the options that it takes."""
    return {
        each.name: {name for param in each.command.params for name in (*param.opts, *param.secondary_opts)}
        | {"--help", "-h"}
        for each in commands()
    }


def typed(text: str) -> list[list[str]]:
    """The `gavel …` commands of a page: those of its blocks, and those in backticks."""
    lines = [line for block in _BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    lines += [match.replace("\n", " ") for match in _INLINE.findall(text)]
    found: list[list[str]] = []
    for line in lines:
        for part in re.split(r"&&|\||;", line.partition(" #")[0]):
            command = re.sub(r"^\s*(?:\$ )?(?:\w+=\S+ )*(?:\.venv/bin/|torchrun .* -m )?", "", part)
            if command.startswith("gavel "):
                try:
                    found.append(shlex.split(command.replace("…", "")))
                except ValueError:
                    found.append(command.split())
    return found


def unknown(words: list[str]) -> list[str]:
    """What of a typed command the command line does not know."""
    if words[1:2] and words[1].startswith("-"):
        return []
    names = [name for name in options() if words[: len(name.split())] == name.split()]
    if not names:
        groups = {name.split()[1] for name in options() if len(name.split()) > 2}
        is_prose = len(words) > 1 and (words[1] in groups or words[1].isupper())
        return [] if is_prose else [" ".join(words[:2])]
    name = max(names, key=len)
    given = words[: words.index("--")] if "--" in words else words
    return [
        f"{name} {word.partition('=')[0]}"
        for word in given
        if word.startswith("--") and word.partition("=")[0] not in options()[name]
    ]


@pytest.mark.docs
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_and_option_of_a_page_exists(page: Path) -> None:
    assert [wrong for words in typed(page.read_text()) for wrong in unknown(words)] == []
