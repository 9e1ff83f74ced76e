"""Where Gavel itself was installed from, and so what to type to add an extra to it."""

import json
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

DISTRIBUTION = "gavel-rl"


def install_line(extra: str) -> str:
    """What to type to install an extra, from where Gavel itself was installed.

    `pip install -e '/src/gavel[train]'` for an editable clone, the path of a wheel, a repository's address, or the
    distribution's name where it came from an index.
    """
    origin: dict[str, Any] = json.loads(_direct_url() or "{}")
    url: str = origin.get("url", "")
    if "vcs_info" in origin:
        vcs, commit = origin["vcs_info"]["vcs"], origin["vcs_info"]["commit_id"]
        return f"pip install '{DISTRIBUTION}[{extra}] @ {vcs}+{url}@{commit}'"
    if not url.startswith("file:"):
        source = f" @ {url}" if url else ""
        return f"pip install '{DISTRIBUTION}[{extra}]{source}'"
    path = url2pathname(urlsplit(url).path)
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}'{path}[{extra}]'"


def _direct_url() -> str | None:
    """Where the installation came from, as pip recorded it (PEP 610); None for an index or no installation."""
    try:
        return distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return None
