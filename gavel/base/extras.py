"""The optional parts of an installation, as the distribution's own metadata lists them.

Features of a missing extra raise `MissingExtraError`; `gavel doctor` shows all extras.
"""

import json
import re
import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from gavel.base.errors import GavelError

DISTRIBUTION = "gavel-rl"
_CHECKOUT = Path(__file__).resolve().parents[2] / "pyproject.toml"
EXTRAS = ("train", "mcp", "parquet", "service", "s3", "cloud", "deploy", "otel", "trackio", "rl4lms", "real", "gpu")

_REQUIREMENT = re.compile(r"""(?P<name>[\w.-]+)(\[(?P<nested>[\w-]+)])?.*;.*extra == ["'](?P<extra>[\w-]+)["']""")


class MissingExtraError(GavelError, ImportError):
    """Something needs an optional part that is not installed."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}, which is not installed.", install_line(extra))


def installed_version(distribution: str) -> str | None:
    """The installed version, read without importing the distribution; None = not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _requirements() -> Sequence[str]:
    """The requirements in the distribution's metadata, or in the project file for a checkout that is on the path
    only."""
    try:
        return requires(DISTRIBUTION) or ()
    except PackageNotFoundError:
        text = _CHECKOUT.read_text() if _CHECKOUT.is_file() else ""
        extras: dict[str, Any] = tomllib.loads(text).get("project", {}).get("optional-dependencies", {})
        return [f'{wanted}; extra == "{extra}"' for extra, each in extras.items() for wanted in each]


def missing_parts(extra: str) -> list[str]:
    """Distributions that are missing for the extra, including those of extras nested in it."""
    missing: list[str] = []
    for requirement in _requirements():
        found = _REQUIREMENT.match(requirement)
        if found is None or found["extra"] != extra:
            continue
        if found["name"] == DISTRIBUTION and found["nested"]:
            missing += missing_parts(found["nested"])
        elif installed_version(found["name"]) is None:
            missing.append(found["name"])
    return missing


def need_extra(extra: str, what: str) -> None:
    """Raises `MissingExtraError` if the extra, which `what` needs, is not installed."""
    if missing := missing_parts(extra):
        raise MissingExtraError(what, missing[0], extra)


def install_line(extra: str) -> str:
    """The command that installs an extra from the source that Gavel itself was installed from.

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
    """The source of the installation as pip recorded it (PEP 610); None for an index or no installation."""
    try:
        return distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return None
