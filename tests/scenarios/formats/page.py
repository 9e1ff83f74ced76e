"""The programs of docs/export.md."""

import re
import subprocess
import sys
from pathlib import Path

from tests.limits import HANG_SECONDS

PAGE = Path(__file__).parents[3] / "docs" / "export.md"


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run_program(word: str, folder: Path) -> str:
    """What the page's program with this word in it prints in a folder of exported files."""
    (program,) = [each for each in programs() if word in each]
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout
