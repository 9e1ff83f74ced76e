"""Size of the base installation in a new environment, and its largest packages.

    python benchmarks/install_size.py                     # the checkout
    python benchmarks/install_size.py --extra train       # with an extra
    python benchmarks/install_size.py --wheel dist/gavel_rl-0.1.0-py3-none-any.whl

Counts the bytes of the environment's site-packages after `pip install`, without pip's own and without bytecode.
"""

import argparse
import subprocess
import sys
import tempfile
import venv
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHOWN = 10


def sizes(site: Path) -> Counter[str]:
    """Bytes by top-level entry."""
    found: Counter[str] = Counter()
    for file in site.rglob("*"):
        if file.is_file() and not file.is_symlink() and "__pycache__" not in file.parts:
            found[file.relative_to(site).parts[0]] += file.stat().st_size
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--extra", default="", help="extras, separated by commas")
    parser.add_argument("--wheel", default=str(ROOT), help="what is installed: a wheel, or a directory")
    given = parser.parse_args()
    wanted = f"{given.wheel}[{given.extra}]" if given.extra else given.wheel
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        (site,) = Path(folder, "lib").glob("python*/site-packages")
        before = sum(sizes(site).values())
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", wanted], check=True)
        found = sizes(site)
        total = sum(found.values()) - before
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        print(f"{wanted} on Python {version}: {total / 1e6:.0f} MB")
        for name, size in found.most_common(SHOWN):
            print(f"  {name:28} {size / 1e6:6.1f} MB")


if __name__ == "__main__":
    main()
