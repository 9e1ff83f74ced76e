"""The demo over several seeds, with its control: the same run with a judge that gives every member the same score.

    python benchmarks/demo_seeds.py --seeds 0 1 2 3 4 --json
    python benchmarks/demo_seeds.py --scenario booking_desk    a world whose end state is checked
    python benchmarks/demo_seeds.py --real                     the small real language model, after `make real`

Each run is a separate process (`gavel demo --fresh`) in a temporary directory; the figures come from its summary.json.
About a minute per seed on two cores.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run(seed: int, judge: str | None, directory: Path, job: Sequence[str]) -> dict[str, Any]:
    """The summary of one demo run, with wall and CPU seconds of its process; `judge` None: the demo's own. `job`: the
    arguments that choose what is learned."""
    started, before = time.monotonic(), os.times()
    options = [*job, *(["--judge", judge] if judge else [])]
    subprocess.run(
        [sys.executable, "-m", "gavel", "demo", "--seed", str(seed), *options, "--fresh"],
        check=True,
        cwd=directory,
        env={name: value for name, value in os.environ.items() if name != "GAVEL_JUDGE_MODEL"},
        stdout=subprocess.DEVNULL,
    )
    after = os.times()
    newest = max(directory.glob("runs/demo/*/summary.json"), key=lambda file: file.stat().st_mtime)
    summary = json.loads(newest.read_text())
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return summary | {"wall_seconds": time.monotonic() - started, "cpu_seconds": cpu}


def standard_errors(before: float, after: float, tasks: int) -> float:
    """The gain, in standard errors of the difference of two shares of `tasks` each."""
    variance = (before * (1 - before) + after * (1 - after)) / tasks
    return (after - before) / math.sqrt(variance) if variance else 0.0 if after == before else math.inf


def row_of(summary: dict[str, Any], *, real: bool) -> dict[str, Any]:
    """What is printed of a run."""
    base, trained = summary["base"], summary["trained"]
    before, after = base["heldout_success"], trained["heldout_success"]
    row = {
        "judge": summary["judge"],
        "seed": summary["seed"],
        "before": round(before, 3),
        "after": round(after, 3),
        "tasks": summary["heldout_tasks"],
        "standard_errors": round(standard_errors(before, after, summary["heldout_tasks"]), 1),
    }
    if real:
        row["words"] = f"{base['words']:.1f} → {trained['words']:.1f}"
    else:
        shown = {name: (base[name], trained[name]) for name in trained if name != "heldout_success"}
        row |= {name: f"{earlier:.2f} → {later:.2f}" for name, (earlier, later) in shown.items()}
    return row | {"wall_seconds": round(summary["wall_seconds"]), "cpu_seconds": round(summary["cpu_seconds"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--control", type=int, nargs="*", default=[0], help="seeds to run with the constant judge too")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--scenario", choices=["returns_desk", "booking_desk"], default="returns_desk")
    what.add_argument("--real", action="store_true", help="the demo of the small real language model")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    job = ["--real"] if arguments.real else [arguments.scenario]
    with tempfile.TemporaryDirectory() as directory:
        for judge, seeds in ((None, arguments.seeds), ("constant", arguments.control)):
            for seed in seeds:
                rows.append(row_of(run(seed, judge, Path(directory), job), real=arguments.real))
                if not arguments.json:
                    print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    if arguments.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
