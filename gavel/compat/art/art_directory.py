"""ART's directory of a model, with links to the checkpoints of its run: `checkpoints/0001 -> …/checkpoints/000001`."""

import os
from pathlib import Path


def link_checkpoints(checkpoints: Path, links: Path) -> Path | None:
    """Makes `links` lead to what is in `checkpoints`; gives the link to the newest one."""
    links.mkdir(parents=True, exist_ok=True)
    saved = {f"{int(entry.name):04d}": entry for entry in _numbered(checkpoints)}
    for link in _numbered(links):
        if link.is_symlink() and not link.exists():
            link.unlink()
    for name, entry in saved.items():
        link = links / name
        if not link.is_symlink():
            link.symlink_to(os.path.relpath(entry, links), target_is_directory=True)
    return links / max(saved) if saved else None


def newest_step(directory: Path) -> int:
    """The highest step that has a checkpoint in `directory`; 0 when there is none."""
    return max((int(entry.name) for entry in _numbered(directory)), default=0)


def _numbered(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return [entry for entry in directory.iterdir() if entry.name.isdecimal()]
