"""What the pages under docs/ show runs as shown, and what they link to is there."""

import ast
import asyncio
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gavel.cli.app import app
from gavel.scenarios.group import TrajectoryGroup, to_line
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from tests.backend_server import free_port
from tests.fake_sky_cloud import fake_cloud
from tests.forked import gavel, script, start_gavel
from tests.limits import HANG_SECONDS
from tests.scenarios.formats.attempts import both, run_program
from tests.scenarios.formats.test_otel_spans import Collector
from tests.trainer.deploy.trained_run import make_run
from tests.trainer.engines.vllm_stand_in import BASE, StandIn

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(?:python )?((?:gavel|tests|benchmarks|docs|examples)/[\w/]+\.\w+)")
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
]
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.slow
@pytest.mark.docs
def test_the_judge_s_page_runs(tmp_path: Path) -> None:
    program, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "judge.md").read_text(), re.DOTALL)
    (tmp_path / "from_the_page.py").write_text(program)
    result = subprocess.run(
        [sys.executable, "from_the_page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert result.returncode == 0, result.stderr
    assert "0.2 ± 0.0 ['addresses the judge']" in result.stdout
    assert result.stdout.splitlines()[-1] == "scored 4 calls []"


@pytest.mark.slow
def test_the_commands_of_several_samplers_are_ones_that_gavel_takes(tmp_path: Path) -> None:
    section = (ROOT / "docs" / "how-to" / "several-gpus.md").read_text().partition("## Some GPUs sample")[2]
    (block,) = re.findall(r"```bash\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    commands = [line.partition("#")[0].split()[1:] for line in block.splitlines()]
    trains = [command for command in commands if command[0] == "train"]
    assert len(trains) == 2
    for command in trains:
        told = gavel(*command, "--dry-run", cwd=tmp_path, HF_HUB_OFFLINE="1", OPENAI_API_KEY="none")
        assert told.returncode == 0, told.stderr
    refused = gavel("backend", "--vllm-replicas", "2", "--vllm-url", "http://gpu-1:8000", cwd=tmp_path)
    assert refused.returncode != 0
    assert "--vllm-replicas: replicas: replicas are started here" in refused.stderr


def pair() -> TrajectoryGroup:
    asked = {"role": "user", "content": "Where?"}
    said = ((text, {"role": "assistant", "content": text}) for text in ("1", "0"))
    return TrajectoryGroup(
        Trajectory(messages_and_choices=[asked, answer], reward=float(text)) for text, answer in said
    )


@pytest.mark.slow
def test_the_page_of_exports_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "export.md").read_text()
    trackers, block, rows = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    for line in trackers.splitlines():
        told = gavel(*line.partition("#")[0].split()[1:], "--dry-run", cwd=tmp_path, HF_HUB_OFFLINE="1")
        assert told.returncode == 0 or re.search(r"the tracker \w+ is not installed", told.stderr), told.stderr
    (group,) = [stored.group for stored in both()]
    run = tmp_path / "runs" / "desk" / "one"
    for split in ("train", "held_out"):
        TrajectoryStore(run / "trajectories" / split / "000020.jsonl.zst").append(group)
    (run / "model.json").write_text('{"name": "one"}')
    (tmp_path / "judged.jsonl").write_text(f"{to_line(group)}\n")
    for line in rows.splitlines():
        (tmp_path / "judged.jsonl").write_text(f"{to_line(pair())}\n")
        assert gavel(*line.partition("#")[0].split()[1:], cwd=tmp_path).returncode == 0
    assert run_program("pairs.jsonl", tmp_path).startswith("['prompt', 'chosen', 'rejected'")
    (tmp_path / "judged.jsonl").write_text(f"{to_line(group)}\n")
    collector = Collector()
    try:
        for line in block.replace("http://127.0.0.1:4318", collector.url).splitlines():
            done = gavel(*line.split()[1:], cwd=tmp_path)
            assert done.returncode == 0, done.stderr
    finally:
        collector.close()
    assert len(collector.calls) == 2
    assert "left out or changed: " in done.stderr
    assert "train/20/0/0 clerk 4 {'reward': 0.75, 'success': True, 'turns': 2}" in run_program("atif", tmp_path)
    assert "'invoke_agent clerk', 'chat one', 'execute_tool get_order'" in run_program("spans.jsonl", tmp_path)
    assert (tmp_path / "results" / "traces.jsonl").is_file()


@pytest.mark.slow
@pytest.mark.docs
def test_the_page_of_comparisons_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "compare.md").read_text(), re.DOTALL)
    (tmp_path / "from_the_page.py").write_text(program.replace("seeds=2, steps=10", "seeds=1, steps=1"))
    done = script(tmp_path / "from_the_page.py", cwd=tmp_path)
    assert done.stdout.strip() == "not shown: one seed has no interval", done.stderr


def test_the_page_of_the_viewer_makes_anchors_of_what_a_person_scored(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "view.md").read_text(), re.DOTALL)
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
def test_the_page_of_evaluations_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "evaluate.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "from_the_page.py").write_text(program.replace("tasks=64", "tasks=4"))
    done = script(tmp_path / "from_the_page.py", cwd=tmp_path)
    assert re.match(r"base:embedded/returns-desk \d\.\d\d \(", done.stdout), done.stderr


@pytest.mark.slow
def test_the_scenarios_page_runs(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "scenarios.md").read_text(), re.DOTALL)
    told = [line for program in programs for line in re.findall(r"print\(.*\)  # (.*)", program)]
    said: list[str] = []
    for number, program in enumerate(programs):
        (tmp_path / f"program_{number}.py").write_text(program)
        said += script(tmp_path / f"program_{number}.py", cwd=tmp_path).stdout.splitlines()
    assert said == ["['look_up_order', 'give_up']", *told]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_service_s_page_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "service.md").read_text()
    (_, curls), (program,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("bash", "python"))
    (settings,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
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
        _check_curls(curls.replace("http://127.0.0.1:8080", url), tmp_path)
        (tmp_path / "client.py").write_text(program.replace("http://127.0.0.1:8080", url))
        assert script(tmp_path / "client.py", cwd=tmp_path).stdout == "[1.0, 0.0]\n"
    finally:
        service.send(signal.SIGTERM)
        ended = service.end()
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.docs
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_first_commands_of_the_service_s_page_run_as_they_are_pasted(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    page = (ROOT / "docs" / "service.md").read_text()
    commands, *_ = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    install, rest = commands.split("\n", 1)
    assert install == "pip install '.[service]'"
    shell = rest.replace("gavel serve", f"gavel serve --port {port}").replace("8080", str(port)) + "kill %1; wait"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", "-c", f"set -m\n{shell}"]
    asked = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert '"scores":[0.5,0.0]' in asked.stdout, asked.stdout + asked.stderr


def _check_curls(shell: str, folder: Path) -> None:
    """What each curl of the page prints, in order."""
    shell = 'curl() { command curl --silent --show-error "$@" && echo; }\n' + shell
    command = ["bash", "-e", "-o", "pipefail", "-c", shell]
    asked = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert asked.returncode == 0, asked.stderr
    printed = [line for line in asked.stdout.split("\n") if line]
    scored, again, later, first, second, page, refused = map(json.loads, printed[:7])
    assert scored["scores"] == again["scores"] == later["scores"] == first["scores"] == second["scores"] == [1.0, 0.0]
    assert {first["index"], second["index"]} == {0, 1}
    assert len(page["judgements"]) == 2
    assert refused["status"] == 404
    assert refused["remedy"]
    assert printed[7] == "ok"
    assert any(line.startswith('gavel_groups_total{status="scored"}') for line in printed[8:])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_page_of_the_wires_runs(tmp_path: Path) -> None:
    members, keys = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "wires.md").read_text(), re.DOTALL)
    service = start_gavel("serve", "--port", "0", cwd=tmp_path)
    try:
        service.wait_for("http://")
        url = re.findall(r"http://[\d.:]+", service.stdout)[0]
        curl = members.replace("curl ", "curl --silent --show-error ").replace("http://127.0.0.1:8080", url)
        command = ["bash", "-c", curl]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=True)
        both = re.sub(r"\}\s*\{", "},{", asked.stdout)  # one may end between the other's answer and its line end
        answers = json.loads(f"[{both}]")
        assert sorted(answer["id"] for answer in answers) == ["a", "b"]
        assert {(answer["status"], answer["arrived"]) for answer in answers} == {("scored", 2)}
    finally:
        service.send(signal.SIGTERM)
        ended = service.end()
    assert ended.returncode == 0, ended.stderr
    (settings,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "wires.md").read_text(), re.DOTALL)
    (tmp_path / "gavel.toml").write_text(settings)
    checked = gavel("serve", "--check", cwd=tmp_path, CI_JUDGE_KEY="k" * 40)
    assert "requests_per_minute = 600" in checked.stdout, checked.stderr
    (tmp_path / "gavel.toml").unlink()
    create, listing, _ = keys.splitlines()
    made = start_gavel(*create.partition("#")[0].split()[1:], cwd=tmp_path).end()
    assert made.stdout.startswith("gavel_")
    assert "trainer" in start_gavel(*listing.split()[1:], cwd=tmp_path).end().stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_that_a_page_links_to_or_names_exists(page: Path) -> None:
    text = page.read_text()
    linked = [page.parent / target for target in re.findall(r"\]\((?!http)([^)#]+)\)", text)]
    named = [ROOT / name for name in NAMED.findall(text) if "NAME" not in name]
    assert [path for path in linked + named if not path.exists()] == []


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def test_the_page_of_installation_lists_the_extras() -> None:
    table = (ROOT / "docs" / "install.md").read_text().partition("| extra |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/how-to/real-model-demo.md"])
def test_each_figure_stands_with_its_command_among_the_benchmarks(page: str) -> None:
    known = BENCHMARKS.read_text()
    text = re.sub(r"!\[[^]]*\]|`[^`]*`", "", prose(ROOT / page))
    assert [figure for figure in re.findall(r"(?<![\d.])0?(\.\d\d?)\b", text) if figure not in known] == []
    commands = re.findall(r"`((?:gavel compare|python benchmarks/)[^`]*)`", prose(ROOT / page))
    assert [command for command in commands if command not in known] == []


def test_the_picture_is_what_its_script_draws_and_names_files_that_exist() -> None:
    spec = importlib.util.spec_from_file_location("make_architecture", ROOT / "docs" / "make_architecture.py")
    assert spec
    assert spec.loader
    script = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.TARGET.read_text() == script.picture()
    named = {file for row in script.ROWS for box in row.boxes for file in box.files.split()}
    assert {file for file in named if not list((ROOT / "gavel").rglob(file))} == set()


@pytest.mark.slow
def test_the_page_on_deploying_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    commands = re.findall(r"^gavel (.*)$", page, re.MULTILINE)
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    make_run(tmp_path / "runs")
    server = StandIn()
    try:
        told = [
            command.replace("http://127.0.0.1:8000", server.url)
            for command in commands
            if "http://127.0.0.1:8000" in command or command.startswith(("deployments", "undeploy"))
        ]
        assert [command.split()[0] for command in told] == ["deploy", "deployments", "undeploy"]
        for command in told:
            extra = ("--set", f"base={BASE}", "--no-smoke-test") if command.startswith("deploy ") else ()
            done = gavel(*command.split(), *extra, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        assert len(server.every_name) == 1
        assert server.adapters == {}
    finally:
        server.close()
    compile(program, "deploy.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.slow
@pytest.mark.docs
async def test_the_cluster_of_the_page_is_started_found_again_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = (ROOT / "docs" / "elsewhere.md").read_text().partition("## On a cluster")[2].partition("\n## ")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (shell,) = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    lines = [line.partition("#")[0].split()[1:] for line in shell.splitlines() if line.startswith("gavel ")]
    up, train, down = lines
    assert [up[:2], train[0], down] == [["cluster", "up"], "train", ["cluster", "down"]]
    monkeypatch.setenv("GAVEL_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("HF_TOKEN", "hf_1234567")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_scenario.py").write_text('import gavel\n\ndesk = gavel.find_scenario("returns_desk")\n')

    def typed(*arguments: str) -> str:
        done = CliRunner().invoke(app, arguments, input="y\n")
        assert done.exit_code == 0, done.output
        return done.stdout

    cloud = fake_cloud(tmp_path, monkeypatch)
    next(cloud)
    try:
        assert "gavel is up" in await asyncio.to_thread(typed, *up, "--port", str(free_port()))
        await asyncio.to_thread(typed, *train, "--dry-run")
        shown = program.replace("Qwen/Qwen3-4B", "embedded/returns-desk")
        run = compile(shown, "elsewhere.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        names: dict[str, Any] = {}
        await eval(run, names)
        assert names["backend"].cluster == "gavel"
        assert await asyncio.to_thread(typed, *down) == "There was no cluster gavel.\n"
    finally:
        next(cloud, None)
        sys.modules.pop("sky", None)
