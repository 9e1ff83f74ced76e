"""Runs slow suites (suites.toml): `NAME` runs that one; without a name, those whose turn it is, before `make test`.

First come the suites under whose paths a file changed since the base commit (the last tag, else the last merge, else 30
commits back), then the others, both in rotation: which of them comes first moves on with every commit, so each has its
turn. A suite starts while the time that is left is its limit at least; on a slow machine limits are longer. What is
left out, and what cannot be installed and so is skipped, is printed.

    python .ci/suites.py            run the suites; exits with 1 if one of them fails
    python .ci/suites.py NAME       run one, without a limit
    python .ci/suites.py --plan     print their order
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITES_MINUTES = 30
"""For all suites; `.ci/run` adds `make test`, which may take as long."""
INSTALL_MINUTES = 8  # the linters' time too: they run first, so that what they find is known in minutes
INSTALL = ".venv/.installed-dev"
"""Make target that every suite needs. It is made first, so that no suite pays for it with its own minutes."""
FALLBACK_COMMITS = 30
REFERENCE_SECONDS = 0.11
"""CPU seconds of `_seconds` on the machine on which the suites' minutes were measured."""
TESTING = {
    "PYTHONDONTWRITEBYTECODE": "",  # each interpreter would compile the package and the tests anew
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # a framework's plugin of pytest may import LiteLLM before Gavel does
}


@dataclass(frozen=True)
class Suite:
    """A slow suite, as suites.toml describes it."""

    name: str
    minutes: int
    paths: tuple[str, ...] = ()
    runs: Sequence[dict] = field(default_factory=lambda: [{}])
    marker: str = ""
    tests: str = ""
    programs: dict[str, str] = field(default_factory=dict)
    """Programs that it needs, each with Debian's package that brings it."""
    tools: str = ""
    """An environment that its tests call, and do not run in."""
    real: bool = False
    """Whether it needs the small real language model, in .venv."""


def table() -> tuple[dict[str, dict], list[Suite]]:
    """The environments by name, and the suites."""
    read = tomllib.loads((ROOT / ".ci" / "suites.toml").read_text())
    return read["environments"], [Suite(name, **each) for name, each in read["suites"].items()]


def install(suite: Suite, seconds: float) -> bool:
    """Brings what a suite needs: Debian's packages, the real model, environments. Returns whether all is there."""
    missing = [package for program, package in suite.programs.items() if not _is_there(program)]
    commands = []
    if missing:
        options = "-y -qq --no-install-recommends"
        script = f"apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install {options} {shlex.join(missing)}"
        commands.append(["bash", "-c", script])
    if suite.real:
        commands.append(["make", ".venv/.installed-real"])
    for name in sorted({run["environment"] for run in suite.runs if "environment" in run} | {suite.tools} - {""}):
        commands += _environment_commands(name, **table()[0][name])
    end = time.monotonic() + seconds
    return all(execute(command, end - time.monotonic()) == 0 for command in commands)


def _is_there(program: str) -> bool:
    named = os.environ.get(f"GAVEL_TEST_{program.upper()}")
    return bool(named or shutil.which(program) or [*Path("/usr/lib/postgresql").glob(f"*/bin/{program}")])


def _environment_commands(
    name: str,
    packages: Sequence[str] = (),
    bare: Sequence[str] = (),
    removed: Sequence[str] = (),
    alone: bool = False,
) -> list[list[str]]:
    """What makes an environment; nothing where it stands already as it is described."""
    folder = ROOT / ".venvs" / name
    made, described = folder / ".made", json.dumps([packages, bare, removed, alone])
    if made.is_file() and made.read_text() == described:
        return []
    python, own = str(folder / "bin" / "python"), str(ROOT / ".venv" / "bin" / "python")
    site = "import sysconfig; print(sysconfig.get_path('purelib'))"
    lines = [f"echo Installing into {folder}, once", f"{own} -m venv --clear {folder}"]
    if not alone:  # what .venv has is not installed again, unless another version is wanted
        link = f"import site; site.addsitedir('$({own} -c \"{site}\")')"
        lines.append(f'echo "{link}" > "$({python} -c "{site}")/gavel.pth"')
    pip = f"{python} -m pip --disable-pip-version-check --quiet --quiet"
    if packages:
        lines.append(f"{pip} install ${{PIP_ARGS:-}} {shlex.join(packages)}")
    if bare:
        lines.append(f"{pip} install ${{PIP_ARGS:-}} --no-deps {shlex.join(bare)}")
    if removed:
        lines.append(f"{pip} uninstall --yes {shlex.join(removed)}")
    lines.append(f"printf %s {shlex.quote(described)} > {made}")
    return [["bash", "-euc", "\n".join(lines)]]


def test(suite: Suite, seconds: float) -> int | None:
    """Runs a suite's tests, each run to its end; returns the first bad status, or None when the time ran out."""
    end, worst = time.monotonic() + seconds, 0
    for run in suite.runs:
        python = ROOT / (f".venvs/{run['environment']}" if "environment" in run else ".venv") / "bin" / "python"
        marked = ["-m", suite.marker] if suite.marker else []
        variables = {name: value.format(root=ROOT) for name, value in run.get("variables", {}).items()}
        if suite.marker == "thorough":
            variables["GAVEL_TEST_THOROUGH"] = "1"
        command = [
            str(python),
            "-m",
            "pytest",
            "--quiet",
            *marked,
            *shlex.split(suite.tests + " " + run.get("tests", "")),
        ]
        say(" ".join([*(f"{name}={value}" for name, value in variables.items()), *command]))
        status = execute(command, end - time.monotonic(), {**TESTING, **variables})
        if status is None:
            return None
        worst = worst or status
    return worst


def execute(command: Sequence[str], seconds: float, variables: dict[str, str] | None = None) -> int | None:
    """Runs a command; returns its exit status, or None when the time ran out and its processes were killed."""
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **(variables or {})}, start_new_session=True)
    try:
        return process.wait(timeout=max(seconds, 0.0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def run(suite: Suite, minutes: float) -> bool:
    """Runs one suite; returns whether it passed or was skipped because it could not be installed."""
    if not install(suite, 30 * minutes):
        say(f"SKIPPED: suite {suite.name}: what it needs could not be installed, so ITS TESTS DID NOT RUN.")
        return True
    status = test(suite, 60 * minutes)
    outcome = {0: "passed", None: f"FAILED: not done after {minutes:.0f} minutes"}
    say(f"Suite {suite.name} {outcome.get(status, 'FAILED')} (make test-{suite.name}).")
    return status == 0


def ordered(suites: Sequence[Suite], changed: Sequence[str] | None, turn: int) -> list[tuple[Suite, str]]:
    """The suites in the order in which they run, each with the reason: those that a changed path touches come first.

    Both kinds are rotated by `turn`, so that no suite is left out for ever. `changed` is None where it is not known:
    every suite then counts as touched.
    """
    first = turn % len(suites) if suites else 0
    rotated = [(suite, _touched(suite, changed)) for suite in [*suites[first:], *suites[:first]]]
    return [(suite, reason or "its turn") for suite, reason in sorted(rotated, key=lambda pair: not pair[1])]


def _touched(suite: Suite, changed: Sequence[str] | None) -> str:
    if changed is None:
        return "the changes are not known"
    paths = [path for path in changed if path.startswith((".ci/", "Makefile", *suite.paths))]
    return f"{paths[0]} changed" if paths else ""


def run_in_time(order: Sequence[tuple[Suite, str]], seconds: float, slowness: float = 1.0) -> bool:
    """Runs each suite whose limit is left of `seconds` when its turn comes; returns whether none of them failed.

    `slowness`: how many times longer than the reference this machine takes, and so each suite may.
    """
    end, passed = time.monotonic() + seconds, True
    for suite, reason in order:
        left, limit = (end - time.monotonic()) / 60, suite.minutes * slowness
        if left < limit:
            say(f"Suite {suite.name} LEFT OUT ({reason}): it may take {limit:.0f} minutes, and {left:.0f} are left.")
            continue
        say(f"Suite {suite.name} runs ({reason}).")
        passed &= run(suite, limit)
    return passed


def changed_files(root: Path = ROOT) -> list[str] | None:
    """Paths that changed between the base commit and HEAD; None where git cannot tell."""
    if _git(root, "rev-parse", "HEAD") is None:
        return None
    changed = _git(root, "diff", "--name-only", _base(root), "HEAD")
    return None if changed is None else changed.splitlines()


def _base(root: Path) -> str:
    tag = _git(root, "describe", "--tags", "--abbrev=0", "HEAD^")
    merge = _git(root, "rev-list", "--first-parent", "--merges", "--max-count=1", "HEAD^")
    earlier = _git(root, "rev-parse", "--verify", "--quiet", f"HEAD~{FALLBACK_COMMITS}")
    roots = _git(root, "rev-list", "--max-parents=0", "HEAD") or ""  # of a shallow clone: the oldest commits it has
    return tag or merge or earlier or roots.splitlines()[-1]


def commit_count(root: Path = ROOT) -> int:
    return int(_git(root, "rev-list", "--count", "HEAD") or 0)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def slowness() -> float:
    """How many times longer than the reference this machine takes now; at least 1."""
    return max(1.0, min(_seconds() for _ in range(5)) / REFERENCE_SECONDS)


def _seconds() -> float:
    """CPU seconds of a piece of work as tests do it: strings, dictionaries, JSON."""
    began = time.process_time()
    texts: dict[int, str] = {}
    for number in range(300_000):
        texts[number % 997] = f"{number} {texts.get(number % 991, '')[:8]}"
    for _ in range(150):
        json.loads(json.dumps(texts))
    return time.process_time() - began


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    suites = {suite.name: suite for suite in table()[1]}
    if unknown := [name for name in arguments if name not in [*suites, "--plan"]]:
        say(f"There is no suite {unknown[0]}. There are: {', '.join(suites)}.")
        return 2
    order = ordered([*suites.values()], changed_files(), commit_count())
    if "--plan" in arguments:
        for suite, reason in order:
            say(f"{suite.name}: {reason}")
        return 0
    if arguments:
        return sum(not run(suites[name], minutes=1e6) for name in arguments)
    deadline = time.monotonic() + 60 * INSTALL_MINUTES
    if execute(["make", INSTALL], 60 * INSTALL_MINUTES) != 0:
        say(f"`make {INSTALL}` did not succeed within {INSTALL_MINUTES} minutes.")
    elif execute(["make", "lint"], deadline - time.monotonic()) != 0:
        say("make: `make lint` FAILED, so no slow suite ran.")
        return 1
    factor = slowness()
    if factor > 1:
        say(f"This machine takes {factor:.1f} times as long as the reference, so the suites' limits are longer.")
    return 0 if run_in_time(order, 60 * SUITES_MINUTES, factor) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
