"""The root of the repository that a script runs in."""

from pathlib import Path


def get_repo_root_path() -> str:
    """The nearest directory above (and with) this one that is a git repository; without one, this one."""
    here = Path.cwd()
    return str(next((path for path in (here, *here.parents) if (path / ".git").exists()), here))
