"""Takes the pictures of reports that README and pages show: `python docs/make_screenshots.py demo-report REPORT.html`.

Each picture names the command that writes its report. Chromium takes them (Debian's package chromium).
"""

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Picture:
    """A picture of the upper part of a report, in pixels."""

    width: int
    height: int
    command: str
    """Writes the report."""


PICTURES = {
    "demo-report": Picture(1000, 1960, "gavel demo --seed 0"),
    "compare-report": Picture(1100, 1405, "gavel compare returns_desk --rewards judge,hand,success,constant --seeds 5"),
}


def take(name: str, report: Path) -> Path:
    """Writes docs/NAME.png. Raises `FileNotFoundError` without a report, `CalledProcessError` if Chromium fails."""
    picture, target = PICTURES[name], FOLDER / f"{name}.png"
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                *("chromium", "--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={profile}"),
                *(f"--window-size={picture.width},{picture.height}", "--blink-settings=preferredColorScheme=1"),
                *(f"--screenshot={target}", report.resolve(strict=True).as_uri()),
            ],
            check=True,
            capture_output=True,
        )
    return target


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in PICTURES:
        sys.exit("\n".join([__doc__, *(f"{name:16}{picture.command}" for name, picture in PICTURES.items())]))
    print(take(sys.argv[1], Path(sys.argv[2])))
