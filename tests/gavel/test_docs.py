"""What the pages under docs/ show runs as shown, and what they link to is there."""

import json
import re
import runpy
import shutil
import signal
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from gavel.scenarios.group import TrajectoryGroup, to_line
from tests.forked import gavel, script, start_gavel, succeed
from tests.gavel.page_walker import blocks
from tests.limits import HANG_SECONDS
from tests.scenarios.formats.attempts import both

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(?:python )?((?:gavel|tests|benchmarks|docs|examples)/[\w/]+\.\w+)")
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
]
DOCS = ROOT / "docs"
BENCHMARKS = DOCS / "benchmarks.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.slow
@pytest.mark.docs
@pytest.mark.parametrize(
    ("page", "smaller", "printed"),
    [
        ("judge", {}, r"(?s).*0\.2 ± 0\.0 \['addresses the judge'\].*\nscored 4 calls \[\]\n"),
        ("compare", {"seeds=2, steps=10": "seeds=1, steps=1"}, "not shown: one seed has no interval\n"),
        ("evaluate", {"tasks=64": "tasks=4"}, r"base:embedded/returns-desk \d\.\d\d \("),
    ],
)
def test_the_program_of_a_page_runs(page: str, smaller: dict[str, str], printed: str, tmp_path: Path) -> None:
    program, *_ = blocks(DOCS / f"{page}.md", "python")
    for shown, walked in smaller.items():
        program = program.replace(shown, walked)
    (tmp_path / "from_the_page.py").write_text(program)
    done = script(tmp_path / "from_the_page.py", cwd=tmp_path)
    assert re.match(printed, done.stdout), done.stdout + done.stderr


@pytest.mark.slow
def test_the_commands_of_several_samplers_are_ones_that_gavel_takes(tmp_path: Path) -> None:
    (block,) = blocks(DOCS / "how-to" / "several-gpus.md", "bash", "Some GPUs sample, the others learn")
    commands = [line.partition("#")[0].split()[1:] for line in block.splitlines()]
    trains = [command for command in commands if command[0] == "train"]
    assert len(trains) == 2
    for command in trains:
        succeed(*command, "--dry-run", cwd=tmp_path, HF_HUB_OFFLINE="1", OPENAI_API_KEY="none")
    refused = gavel("backend", "--vllm-replicas", "2", "--vllm-url", "http://gpu-1:8000", cwd=tmp_path)
    assert refused.returncode != 0
    assert "--vllm-replicas: backend.engine.replicas: replicas are started here" in refused.stderr


def test_the_page_of_the_viewer_makes_anchors_of_what_a_person_scored(tmp_path: Path) -> None:
    (program,) = blocks(DOCS / "view.md", "python")
    (group,) = [stored.group for stored in both()]
    members = [
        member.model_copy(update={"metrics": {"human": score}, "agent": None})
        for member, score in zip(group.trajectories[:2], (0.9, 0.2), strict=True)
    ]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "annotations.jsonl").write_text(f"{to_line(TrajectoryGroup(members))}\n")
    (tmp_path / "from_the_page.py").write_text(f"{program}print([anchor.score for anchor in judge.anchors])\n")
    done = script(tmp_path / "from_the_page.py", cwd=tmp_path)
    assert done.stdout.strip() == "[0.9, 0.2]", done.stderr


@pytest.mark.slow
def test_the_scenarios_page_runs(tmp_path: Path) -> None:
    programs = blocks(DOCS / "scenarios.md", "python")
    told = [line for program in programs for line in re.findall(r"print\(.*\)  # (.*)", program)]
    said: list[str] = []
    for number, program in enumerate(programs):
        (tmp_path / f"program_{number}.py").write_text(program)
        said += script(tmp_path / f"program_{number}.py", cwd=tmp_path).stdout.splitlines()
    assert said == told


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_service_s_page_runs(tmp_path: Path) -> None:
    page = DOCS / "service.md"
    (commands,), (settings,) = (blocks(page, kind) for kind in ("bash", "toml"))
    (tmp_path / "careful.txt").write_text("Be careful.")
    (tmp_path / "gavel.toml").write_text(settings)
    checked = gavel("serve", "--check", cwd=tmp_path, TRAINER_KEY="k" * 40, OPENAI_API_KEY="k")
    assert "retention_days = 30" in checked.stdout, checked.stderr
    without_keys = settings.partition("[keys")[0]
    (tmp_path / "gavel.toml").write_text(without_keys.replace("8080", "0").replace("openai/gpt-5-mini", "stand-in"))
    service = start_gavel("serve", cwd=tmp_path)
    try:
        service.wait_for("http://")
        url = re.findall(r"http://[\d.:]+", service.stdout)[0]
        curl = commands[commands.index("curl") :].replace("http://127.0.0.1:8080", url)
        asked = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=HANG_SECONDS)
        assert json.loads(asked.stdout)["scores"] == [0.5, 0.0], asked.stderr
    finally:
        service.send(signal.SIGTERM)
        ended = service.end()
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_that_a_page_links_to_or_names_exists(page: Path) -> None:
    text = page.read_text()
    linked = [page.parent / target for target in re.findall(r"\]\((?!http)([^)#]+)\)", text)]
    named = [ROOT / name for name in NAMED.findall(text) if "NAME" not in name]
    assert [path for path in linked + named if not path.exists()] == []


def test_the_page_of_installation_lists_the_extras() -> None:
    table = (ROOT / "docs" / "install.md").read_text().partition("| extra |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/how-to/real-model-demo.md"])
def test_each_figure_stands_with_its_command_among_the_benchmarks(page: str) -> None:
    known = BENCHMARKS.read_text()
    prose = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    text = re.sub(r"!\[[^]]*\]|`[^`]*`", "", prose)
    assert [figure for figure in re.findall(r"(?<![\d.])0?(\.\d\d?)\b", text) if figure not in known] == []
    commands = re.findall(r"`((?:gavel compare|python benchmarks/)[^`]*)`", prose)
    assert [command for command in commands if command not in known] == []


def test_the_picture_is_what_its_script_draws_and_names_files_that_exist() -> None:
    script = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "make_architecture.py")))
    assert script.TARGET.read_text() == script.picture()
    named = {file for row in script.ROWS for box in row.boxes for file in box.files.split()}
    assert {file for file in named if not list((ROOT / "gavel").rglob(file))} == set()
