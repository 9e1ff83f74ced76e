"""Imports in a user's file find its neighbours first, at whatever time they run.

    # desk/returns.py, run from elsewhere as `gavel train desk/returns.py`
    def policy() -> str:
        from prompts import POLICY          # desk/prompts.py, though the folder is not on sys.path any more
        return POLICY

Only code in the file's folder finds the neighbours: a library that imports `prompts` or `datasets` gets its own.
"""

import inspect
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType

_INSTALLED = {"site-packages", "dist-packages"}


class OwnImports:
    """Finds the modules of one folder, for imports by code in that folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or not self._holds(_importer(inspect.currentframe())):
            return None
        return PathFinder.find_spec(fullname, [str(self.folder)])

    def _holds(self, file: str) -> bool:
        """Whether the file is in the folder; an environment of installed packages in it does not belong to it."""
        path = Path(file)
        return path.is_relative_to(self.folder) and not _INSTALLED & set(path.parts)


def neighbours_first(folder: Path) -> None:
    """Lets imports by code in this folder find its modules and packages first, from now on."""
    known = (finder.folder for finder in sys.meta_path if isinstance(finder, OwnImports))
    if folder not in known:
        sys.meta_path.insert(0, OwnImports(folder))


def _importer(frame: FrameType | None) -> str:
    """The file of the code that imports."""
    while frame is not None and _is_machinery(frame):
        frame = frame.f_back
    return frame.f_code.co_filename if frame else ""


def _is_machinery(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name in ("importlib", __name__) or name.startswith(("importlib.", "_frozen_importlib"))
