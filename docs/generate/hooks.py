"""What MkDocs calls while it builds the site: adds the generated pages, mends links out of `docs/`, writes `llms.txt`."""

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parents[1]))

from generate import commands, environment, errors, llms, public_names, repository, settings

GENERATED = {
    "reference/api.md": public_names.page,
    "reference/commands.md": commands.page,
    "reference/environment.md": environment.page,
    "reference/errors.md": errors.page,
    "reference/settings.md": settings.page,
}

_first_sentences: dict[str, str] = {}
_navigation: list[Page] = []


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages and the repository's files."""
    for uri, page in GENERATED.items():
        text = repository.relinked(page(), uri, f"docs/{uri}")
        files.append(File.generated(config, uri, content=text))
    for uri, text in repository.pages().items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Mends links that leave `docs/`, and keeps the first sentence for `llms.txt`."""
    uri = page.file.src_uri
    _first_sentences[uri] = llms.first_sentence(markdown)
    if uri in GENERATED or uri in repository.AS_PAGES.values():
        return markdown
    return repository.relinked(markdown, uri, f"docs/{uri}")


def on_nav(nav: Navigation, config: Any, files: Files) -> Navigation:
    _navigation[:] = nav.pages
    return nav


def on_post_build(config: Any) -> None:
    """Writes `llms.txt` and `llms-reference.txt` beside the pages."""
    base = config["site_url"] or ""
    lines = [
        llms.PageLine(
            section=str(page.ancestors[-1].title) if page.ancestors else "Gavel",
            title=str(page.title),
            url=base + page.url,
            says=_first_sentences.get(page.file.src_uri, ""),
        )
        for page in _navigation
    ]
    site = Path(config["site_dir"])
    site.joinpath("llms.txt").write_text(llms.index(lines))
    site.joinpath("llms-reference.txt").write_text(llms.reference())
