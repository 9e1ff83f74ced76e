"""The layout of the repository: floors, wings, links, sizes, and tests that mirror the modules."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "gavel").rglob("*.py"))
WINGS = sorted(path.parent for path in MODULES if path.name == "__init__.py")
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
LONGEST = 400

# Tests of a whole wing: they run several of its modules together, so no one module names them.
OF_A_WHOLE_WING = {
    "gavel/rewards/test_sent_rewards.py",
    "judge/service/test_erasure.py",
    "scenarios/bridges/agentgym/test_agentgym.py",
    "scenarios/bridges/agentgym/test_served.py",
    "scenarios/bridges/agentgym/test_training.py",
    "scenarios/library/test_conformance.py",
    "scenarios/library/test_sick_worlds.py",
    "gavel/rewards/test_trl_training.py",
    "gavel/rewards/test_verl_launch.py",
    "gavel/rewards/test_verl_package.py",
    "gavel/cli/test_cli.py",
    "gavel/reports/viewer/test_browser.py",
    "trainer/atropos/test_atroposlib.py",
    "trainer/atropos/test_kills.py",
    "trainer/backends/remote/test_faults.py",
    "trainer/backends/remote/test_hostile_networks.py",
    "trainer/backends/remote/test_hostile_users.py",
    "trainer/backends/remote/test_live_kills.py",
    "trainer/backends/skypilot/test_api_server.py",
    "trainer/backends/skypilot/test_nodes.py",
    "trainer/backends/remote/test_secrets.py",
    "trainer/backends/test_conformance.py",
    "trainer/deploy/test_hosted_smoke.py",
    "trainer/deploy/test_kills.py",
    "trainer/deploy/test_proxies.py",
    "trainer/deploy/test_secrets.py",
    "trainer/engines/test_conformance.py",
    "trainer/kernels/test_liger_kernels.py",
    "trainer/learner/test_parity_trl.py",
    "trainer/loop/test_staleness.py",
    "trainer/serving/test_frameworks.py",
    "trainer/serving/test_hostile_clients.py",
    "trainer/serving/test_openai_sdk.py",
    "trainer/serving/test_response_format.py",
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_error_is_raised_where_python_before_3_11_4_wraps_it_in_a_group() -> None:
    groups = [
        (name(path), node)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.TryStar)
    ]
    handled = [(file, part) for file, node in groups for handler in node.handlers for part in ast.walk(handler)]
    assert [f"{file}:{part.lineno}" for file, part in handled if isinstance(part, ast.Raise)] == []


def test_imports_go_downward_only() -> None:
    # In a process of its own: import-linter's own logging configuration disables every logger that exists.
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    lint = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout + lint.stderr


@pytest.mark.parametrize("link", ["judge", "prompts", "scenarios", "trainer"])
def test_the_links_at_the_top_point_into_the_package(link: str) -> None:
    assert os.readlink(ROOT / link) == f"gavel/{link}"
    assert (ROOT / link / "__init__.py").is_file()


def test_an_editable_install_offers_the_package_alone() -> None:
    assert os.readlink(ROOT / "src" / "gavel") == "../gavel"
    assert {path.name for path in (ROOT / "src").iterdir() if path.suffix != ".egg-info"} == {"gavel"}


def test_every_folder_of_modules_is_a_package() -> None:
    assert {path.parent for path in MODULES} == set(WINGS)


@pytest.mark.parametrize("wing", WINGS, ids=name)
def test_a_wing_says_what_it_is_for(wing: Path) -> None:
    assert ast.get_docstring(ast.parse((wing / "__init__.py").read_text()))


def test_no_file_is_too_long_to_read() -> None:
    lines = {name(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {path: count for path, count in lines.items() if count > LONGEST} == {}


def test_tests_mirror_the_tree() -> None:
    strays = []
    for path in TESTS:
        *folders, file = path.relative_to(ROOT / "tests").parts
        inside = folders[1:] if folders[:1] == ["gavel"] else folders
        wing, module = (ROOT / "gavel").joinpath(*inside), file.removeprefix("test_").removesuffix(".py")
        of_a_module = (wing / f"{module}.py").is_file() or (wing / module / "__init__.py").is_file()
        at_a_floor_s_top = len(folders) <= 1  # what takes several wings together
        if not wing.is_dir() or not (of_a_module or at_a_floor_s_top or "/".join([*folders, file]) in OF_A_WHOLE_WING):
            strays.append(name(path))
    assert strays == []


def test_what_is_listed_as_of_a_whole_wing_exists() -> None:
    assert {listed for listed in OF_A_WHOLE_WING if not (ROOT / "tests" / listed).is_file()} == set()
