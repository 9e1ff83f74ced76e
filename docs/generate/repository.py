"""Files of the repository as pages, and links out of `docs/` that work on the site as they do in the repository.

A page of `docs/` links to what stands outside by a relative path (`../benchmarks/RESULTS.md`), which works wherever the
repository is read. On the site such a link goes to the page made of that file, or to the file at the address in
`GAVEL_REPOSITORY_URL` (`https://host/owner/name/blob/main/`); without one the path is named. A link to a file that does
not exist is an error.
"""

import os
import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PUBLIC = os.environ.get("GAVEL_REPOSITORY_URL", "")
"""Before the path of a file; "" where the repository has no public address."""
AS_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "notebook.md",
}
"""File of the repository to the page of the site that shows it."""
MADE_OF = {
    "gavel/__init__.pyi": "reference/api.md",
    "gavel/cli/app.py": "reference/commands.md",
    ".env.example": "reference/environment.md",
    "gavel/llm/errors.py": "reference/errors.md",
    "gavel/trainer/run_config.py": "reference/settings.md",
}
"""File to the generated page that tells the same: in a checkout, where that page is not, a link goes to the file."""

_LINK = re.compile(
    r"(?<!\\)\[((?:[^\[\]]|\[[^\[\]]*\]|(?<=\\)[\[\]])*)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)"
)
"""Its text may hold pairs of brackets, or an image."""


class DeadLinkError(ValueError):
    """A page links to a file that the repository does not have."""


def relinked(markdown: str, page: str, source: str) -> str:
    """The text of `page` (its path under docs/), whose file in the repository is `source`, with its links as the site has them."""

    def link(match: re.Match[str]) -> str:
        text = match[1]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        anchor = match[3] or ""
        if shown := AS_PAGES.get(target) or MADE_OF.get(target):
            return f"[{text}]({posixpath.relpath(shown, posixpath.dirname(page) or '.')}{anchor})"
        if target.startswith("docs/"):
            inside = target.removeprefix("docs/")
            return f"[{text}]({posixpath.relpath(inside, posixpath.dirname(page) or '.')}{anchor})"
        if not (ROOT / target).exists():
            raise DeadLinkError(f"{source} links to {target}, which is not there.")
        if PUBLIC:
            return f"[{text}]({PUBLIC}{target}{anchor})"
        return text if target in text else f"{text} (`{target}`)"

    return _LINK.sub(link, markdown)


def pages() -> dict[str, str]:
    """Path under docs/ to the text of each file of the repository that the site shows as a page."""
    return {page: relinked((ROOT / source).read_text(), page, source) for source, page in AS_PAGES.items()}
