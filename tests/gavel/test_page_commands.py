"""What pages tell people to type is what the command line takes."""

import re
import shlex
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
from generate.commands import commands  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.docs]

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_and_option_of_a_page_exists(page: Path) -> None:
    assert [wrong for words in typed(page.read_text()) for wrong in unknown(words)] == []
