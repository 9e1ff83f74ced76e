"""One command several times: whether its runs end with the same adapter, to the last bit.

    python benchmarks/determinism.py --runs 5               five runs that nobody disturbs, one after the other
    python benchmarks/determinism.py --runs 5 --kill        each is killed at another moment, then goes on
    python benchmarks/determinism.py --runs 5 --busy        beside a process for each core that computes all the time
    python benchmarks/determinism.py --threads 2            by two threads; the bits of one thread are others

Trains the embedded policy for a few steps in a temporary directory. Prints the SHA-256 of each adapter; exits with 1
unless all are one.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMAND = (
    *("train", "returns_desk", "--name", "clerk", "--judge", "stand-in", "--tasks", "4", "--group-size", "4"),
    *("--evaluation-tasks", "4", "--steps"),
)
SECONDS = 600
"""A run ends within this time."""


def adapter_hash(directory: Path, steps: int, threads: int = 1, kill_after: float | None = None) -> str:
    """The SHA-256 of the adapter that a run in `directory` ends with.

    `kill_after`: the run is killed so many seconds after its first step is saved, and the command given again.
    """
    checkpoints = directory / "runs" / "returns_desk" / "clerk" / "checkpoints"
    begun = _started(directory, steps, threads)
    if kill_after is not None:
        deadline = time.monotonic() + SECONDS
        while not (checkpoints / "000001").exists() and begun.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(kill_after)
        begun.kill()
        begun.wait()
        begun = _started(directory, steps, threads)
    if begun.wait(SECONDS):
        raise SystemExit((directory / "output").read_text())
    return hashlib.sha256((checkpoints / f"{steps:06}" / "adapter_model.safetensors").read_bytes()).hexdigest()


def _started(directory: Path, steps: int, threads: int) -> "subprocess.Popen[bytes]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")}
    with (directory / "output").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "gavel", *COMMAND, str(steps)],
            cwd=directory,
            env=environment | {"OMP_NUM_THREADS": str(threads)},
            stdout=output,
            stderr=output,
        )


@contextmanager
def _busy(processes: int) -> Iterator[None]:
    computing = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in computing:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--busy", action="store_true")
    given = parser.parse_args()
    hashes: list[str] = []
    with _busy((os.cpu_count() or 1) if given.busy else 0):
        for number in range(given.runs):
            with tempfile.TemporaryDirectory() as directory:
                kill_after = 0.2 * number if given.kill else None
                hashes.append(adapter_hash(Path(directory), given.steps, given.threads, kill_after))
            killed = f" (killed {kill_after:.1f} s after step 1)" if kill_after is not None else ""
            print(f"run {number + 1}: {hashes[-1]}{killed}", flush=True)
    different = len(set(hashes))
    print("one hash" if different == 1 else f"{different} hashes")
    raise SystemExit(different > 1)


if __name__ == "__main__":
    main()
