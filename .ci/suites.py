"""Runs the slow suites whose turn it is, before `make test`.

First come the suites under whose paths a file changed since the base commit (the last tag, else the last merge, else 30
commits back), then the others, both in rotation: which of them comes first moves on with every commit, so each has its
turn. A suite starts while the time that is left is its limit at least; on a slow machine limits are longer. What is
left out is printed.

    python .ci/suites.py            run the suites; exits with 1 if one of them fails
    python .ci/suites.py --plan     print their order
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CAP_MINUTES = 68
INSTALL_MINUTES = 8  # the linters' time too: they run first, so that what they find is known in minutes
MAKE_TEST_MINUTES = 30
SUITES_MINUTES = CAP_MINUTES - INSTALL_MINUTES - MAKE_TEST_MINUTES
INSTALL = ".venv/.installed-dev"
"""Make target that every suite needs. It is made first, so that no suite pays for it with its own minutes."""
FALLBACK_COMMITS = 30
REFERENCE_SECONDS = 0.11
"""CPU seconds of `_seconds` on the machine on which the suites' minutes were measured."""


@dataclass(frozen=True)
class Suite:
    """A slow suite: the make target that runs it, the paths it tests, and how long it takes."""

    name: str
    target: str
    paths: tuple[str, ...]
    minutes: int
    """Wall-clock limit in minutes, preparation included, on a machine as fast as the reference."""
    prepare: str = ""
    """Make target that installs what the suite needs; the suite is skipped when that fails."""


SUITES = (
    Suite(
        name="vllm",
        target="test-vllm",
        paths=(
            ".ci/",
            "Makefile",
            "gavel/trainer/backends/",
            "gavel/trainer/engines/",
            "gavel/trainer/serving/",
            "tests/trainer/conftest.py",
            "tests/trainer/engines/",
        ),
        minutes=15,
        prepare=".venv-vllm/.installed",
    ),
    Suite(
        name="real",
        target="test-real",
        paths=(
            ".ci/",
            "Makefile",
            "gavel/cli/demo_jobs.py",
            "gavel/cli/demo_session.py",
            "gavel/cli/demo_texts.py",
            "gavel/trainer/",
            "tests/trainer/real_parts.py",
            "tests/trainer/test_real_model.py",
            "tests/trainer/test_real_vocabulary.py",
        ),
        minutes=8,
        prepare="real-parts",
    ),
    Suite(
        name="thorough",
        target="test-thorough",
        paths=(
            ".ci/",
            "Makefile",
            "gavel/judge/reply/",
            "gavel/judge/service/http/",
            "gavel/judge/service/schemas/",
            "gavel/trainer/runs/",
            "tests/judge/test_reply.py",
            "tests/judge/service/http/test_openapi.py",
            "benchmarks/gpu_day.py",
            "gavel/trainer/backends/remote/",
            "gavel/trainer/loop/evolve.py",
            "gavel/trainer/memory/",
            "tests/trainer/test_cpus.py",
            "tests/trainer/test_gpu_day.py",
            "tests/trainer/test_resume.py",
        ),
        minutes=10,
    ),
    Suite(
        name="numerics",
        target="test-numerics",
        paths=(
            ".ci/",
            "Makefile",
            "gavel/trainer/data/",
            "gavel/trainer/engines/",
            "gavel/trainer/kernels/",
            "gavel/trainer/learner/",
            "tests/trainer/conftest.py",
            "tests/trainer/kernels/",
            "tests/trainer/learner/",
        ),
        minutes=15,
    ),
    Suite(
        name="kills",
        target="test-kills",
        paths=(
            ".ci/",
            "Makefile",
            "gavel/cli/compare_session.py",
            "gavel/cli/score_batch.py",
            "gavel/llm/cassette.py",
            "gavel/integrations/atropos/",
            "gavel/trainer/backends/",
            "tests/backend_server.py",
            "tests/integrations/atropos/",
            "tests/trainer/backends/",
        ),
        minutes=25,
    ),
    Suite(
        name="postgres",
        target="test-postgres",
        paths=(".ci/", "Makefile", "gavel/judge/service/", "tests/judge/service/"),
        minutes=10,
        prepare="postgresql",
    ),
    Suite(
        name="deploy",
        target="test-deploy",
        paths=(
            ".ci/",
            "Makefile",
            "deploy/",
            "gavel/judge/service/config.py",
            "gavel/trainer/backends/skypilot/exports/",
            "tests/test_deploy.py",
        ),
        minutes=4,
        prepare="deploy-tools",
    ),
    Suite(
        name="sky",
        target="test-sky",
        paths=(
            ".ci/",
            "Makefile",
            "gavel/trainer/backends/skypilot/",
            "tests/trainer/backends/skypilot/",
        ),
        minutes=12,
        prepare="sky",
    ),
    Suite(
        name="browser",
        target="test-browser",
        paths=(
            ".ci/",
            "Makefile",
            "gavel/judge/service/http/",
            "gavel/reports/viewer/",
            "tests/gavel/reports/viewer/",
            "tests/judge/service/http/",
        ),
        minutes=8,
        prepare="browser",
    ),
    Suite(
        name="adapters",
        target="test-adapters",
        paths=(".ci/", "Makefile", "gavel/integrations/", "tests/integrations/"),
        minutes=15,
        prepare="adapters",
    ),
    Suite(
        name="bridges",
        target="test-bridges",
        paths=(
            ".ci/",
            "Makefile",
            "examples/atropos_environment.py",
            "gavel/integrations/",
            "gavel/scenarios/packaged_world.py",
            "tests/integrations/",
        ),
        minutes=15,
        prepare="bridges",
    ),
    Suite(
        name="exports",
        target="test-exports",
        paths=(
            ".ci/",
            "Makefile",
            "gavel/integrations/verifiers/",
            "gavel/scenarios/formats/",
            "gavel/trainer/runs/",
            "tests/integrations/test_verifiers_files.py",
            "tests/scenarios/formats/",
            "tests/trainer/runs/",
        ),
        minutes=8,
        prepare="exports",
    ),
    Suite(
        name="docs",
        target="test-docs",
        paths=(
            ".ci/",
            "Makefile",
            "README.md",
            "docs/",
            "mkdocs.yml",
            "gavel/cli/",
            "gavel/integrations/",
            "gavel/__init__.pyi",
            "tests/gavel/",
        ),
        minutes=20,
        prepare="real-parts",
    ),
    Suite(
        name="frameworks",
        target="test-frameworks",
        paths=(
            ".ci/",
            "Makefile",
            "docs/capture.md",
            "gavel/integrations/art/",
            "gavel/integrations/tau2/",
            "gavel/scenarios/mcp_session.py",
            "gavel/trainer/serving/",
            "tests/integrations/art/test_langgraph.py",
            "tests/integrations/test_tau2.py",
            "tests/trainer/serving/frameworks.txt",
            "tests/trainer/serving/test_frameworks.py",
        ),
        minutes=12,
        prepare="frameworks",
    ),
    Suite(
        name="liger",
        target="test-liger",
        paths=(
            ".ci/",
            "Makefile",
            "gavel/trainer/kernels/",
            "gavel/trainer/policy/policy.py",
            "tests/trainer/families.py",
            "tests/trainer/kernels/",
        ),
        minutes=10,
        prepare="liger",
    ),
)


def ordered(suites: Sequence[Suite], changed: Sequence[str] | None, turn: int) -> list[tuple[Suite, str]]:
    """The suites in the order in which they run, each with the reason: those that a changed path touches come first.

    Both kinds are rotated by `turn`, so that no suite is left out for ever. `changed` is None where it is not known:
    every suite then counts as touched.
    """
    first = turn % len(suites) if suites else 0
    rotated = [(suite, _touched(suite, changed)) for suite in [*suites[first:], *suites[:first]]]
    return [(suite, reason or "its turn") for suite, reason in sorted(rotated, key=lambda pair: not pair[1])]


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


def _touched(suite: Suite, changed: Sequence[str] | None) -> str:
    if changed is None:
        return "the changes are not known"
    paths = [path for path in changed if path.startswith(suite.paths)]
    return f"{paths[0]} changed" if paths else ""


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


def make(target: str, seconds: float) -> int | None:
    """Runs a make target; returns its exit status, or None when the time ran out and its processes were killed."""
    process = subprocess.Popen(["make", target], cwd=ROOT, start_new_session=True)
    try:
        return process.wait(timeout=max(seconds, 0.0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def run(suite: Suite, minutes: float) -> bool:
    """Runs one suite; returns whether it passed or was skipped because it could not be installed."""
    deadline = time.monotonic() + 60 * minutes
    if suite.prepare and make(suite.prepare, 30 * minutes) != 0:
        say(f"SKIPPED: suite {suite.name}: `make {suite.prepare}` did not succeed, so ITS TESTS DID NOT RUN.")
        return True
    status = make(suite.target, deadline - time.monotonic())
    outcome = {0: "passed", None: f"FAILED: not done after {minutes:.0f} minutes"}
    say(f"Suite {suite.name} {outcome.get(status, 'FAILED')} (make {suite.target}).")
    return status == 0


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
    order = ordered(SUITES, changed_files(), commit_count())
    if "--plan" in arguments:
        for suite, reason in order:
            say(f"{suite.name}: {reason}")
        return 0
    deadline = time.monotonic() + 60 * INSTALL_MINUTES
    if make(INSTALL, 60 * INSTALL_MINUTES) != 0:
        say(f"`make {INSTALL}` did not succeed within {INSTALL_MINUTES} minutes.")
    elif make("lint", deadline - time.monotonic()) != 0:
        say("make: `make lint` FAILED, so no slow suite ran.")
        return 1
    factor = slowness()
    if factor > 1:
        say(f"This machine takes {factor:.1f} times as long as the reference, so the suites' limits are longer.")
    return 0 if run_in_time(order, 60 * SUITES_MINUTES, factor) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
