"""The demo over several seeds, with its control: the same run with a judge that gives every member the same score.

    python benchmarks/demo_seeds.py --seeds 0 1 2 3 4 --json

Each run is a separate process (`gavel demo --fresh`) in a temporary directory; the figures come from its summary.json.
About three minutes per seed on two cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def run(seed: int, judge: str, directory: Path) -> dict[str, Any]:
    """The summary of one demo run, with wall and CPU seconds of its process."""
    started, before = time.monotonic(), os.times()
    subprocess.run(
        [sys.executable, "-m", "gavel", "demo", "--seed", str(seed), "--judge", judge, "--fresh"],
        check=True,
        cwd=directory,
        stdout=subprocess.DEVNULL,
    )
    after = os.times()
    (summary,) = [
        found
        for file in directory.glob("runs/demo/*/summary.json")
        if (found := json.loads(file.read_text()))["seed"] == seed and found["judge"] == judge
    ]
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return summary | {"wall_seconds": time.monotonic() - started, "cpu_seconds": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--control", type=int, nargs="*", default=[0], help="seeds to run with the constant judge too")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for judge, seeds in (("stand-in", arguments.seeds), ("constant", arguments.control)):
            for seed in seeds:
                summary = run(seed, judge, Path(directory))
                rows.append(
                    {
                        "judge": judge,
                        "seed": seed,
                        "before": round(summary["base"]["heldout_success"], 3),
                        "after": round(summary["trained"]["heldout_success"], 3),
                        "tasks": summary["heldout_tasks"],
                        "looked_after": round(summary["trained"]["looked_before_acting"], 3),
                        "wall_seconds": round(summary["wall_seconds"]),
                        "cpu_seconds": round(summary["cpu_seconds"]),
                    }
                )
                if not arguments.json:
                    print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    if arguments.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
