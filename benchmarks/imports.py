"""What starting costs: `import gavel`, `gavel --help`, and the first use of `gavel.Trajectory`.

    python benchmarks/imports.py [--repetitions 7]

CPU seconds (user and system) of fresh processes, less those of an empty program; medians. A trajectory holds OpenAI's
`Choice`, so the import of that is not Gavel's: what comes on top is measured within one process, after it.
"""

import argparse
import resource
import statistics
import subprocess
import sys

CHOICE = "from openai.types.chat.chat_completion import Choice"
PROGRAMS = {
    "empty": "pass",
    "import gavel": "import gavel",
    "gavel --help": "import sys; sys.argv = ['gavel', '--help']; from gavel.cli import main; main()",
    "import of OpenAI's Choice": CHOICE,
}
ABOVE_CHOICE = (
    f"{CHOICE}; import time; t = time.process_time(); import gavel; gavel.Trajectory; print(time.process_time() - t)"
)
BARS = {"import gavel": 0.03, "gavel --help": 0.4, "gavel.Trajectory above Choice": 0.1}


def cpu_seconds(program: str) -> float:
    """CPU seconds of a fresh Python that runs `program`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    repetitions = parser.parse_args().repetitions
    for program in PROGRAMS.values():
        cpu_seconds(program)  # writes the bytecode files
    samples: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(repetitions):
        for name, program in PROGRAMS.items():
            samples[name].append(cpu_seconds(program))
    above = [float(subprocess.check_output([sys.executable, "-c", ABOVE_CHOICE])) for _ in range(repetitions)]
    medians = {name: statistics.median(seconds) for name, seconds in samples.items()}
    figures = {name: medians[name] - medians["empty"] for name in PROGRAMS if name != "empty"}
    figures["gavel.Trajectory above Choice"] = statistics.median(above)
    print(f"CPU seconds, median of {repetitions} processes (an empty one takes {medians['empty']:.3f})")
    for name, seconds in figures.items():
        bar = f"  (bar {BARS[name]:g})" if name in BARS else ""
        print(f"{name:30} {seconds:6.3f}{bar}")


if __name__ == "__main__":
    main()
