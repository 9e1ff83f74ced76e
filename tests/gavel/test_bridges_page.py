"""What docs/bridges.md shows runs as shown."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gavel.integrations.openenv.server import OpenEnvService
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import find_scenario
from tests.forked import gavel, script, start_gavel
from tests.integrations.openenv.players import call
from tests.integrations.openenv.players import script as script_of
from tests.integrations.openenv.served import in_a_thread

PAGE = (Path(__file__).parents[2] / "docs" / "bridges.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@contextmanager
def served(command: str, cwd: Path) -> Iterator[str]:
    """The address that a command of the page serves at, on a free port."""
    server = start_gavel(*re.sub(r"--port \d+", "--port 0", command).split()[1:], cwd=cwd)
    try:
        server.wait_for("http://")
        yield re.findall(r"http://[\d.:]+", server.stdout)[0]
    finally:
        server.send(signal.SIGTERM)
        assert server.end().returncode == 0


@pytest.mark.slow
def test_the_section_on_agentgym_runs(tmp_path: Path) -> None:
    text = section("AgentGym")
    from_elsewhere, serve = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    address = "http://127.0.0.1:36001"
    with served(serve, tmp_path) as url:
        for line in from_elsewhere.replace('"', "").replace(address, url).splitlines():
            done = gavel(*line.split()[1:], cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        (tmp_path / "client.py").write_text(program.replace(address, url))
        told = re.findall(r"^print\(.*\)  # (.*)$", program, re.MULTILINE)
        done = script(tmp_path / "client.py", cwd=tmp_path)
        assert done.stdout.splitlines() == told, done.stderr


def blocks(title: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section(title), re.DOTALL)


@pytest.mark.slow
def test_the_section_on_openenv_serves_what_it_checks(tmp_path: Path) -> None:
    check, serve = blocks("OpenEnv", "bash")
    with served(serve, tmp_path) as url:
        words = check.replace('"', "").replace("http://127.0.0.1:8000", url).split()
        done = gavel(*words[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.bridges
@pytest.mark.slow
def test_the_section_on_openenv_runs_its_client(tmp_path: Path) -> None:
    pytest.importorskip("openenv")
    (program,) = blocks("OpenEnv", "python")
    with in_a_thread(OpenEnvService(find_scenario("returns_desk")).app()) as url:
        (tmp_path / "client.py").write_text(program.replace("http://127.0.0.1:8000", url))
        done = subprocess.run([sys.executable, "client.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    told = re.findall(r"^ *(?:last|print).*\)  # (.*)$", program, re.MULTILINE)
    assert done.stdout.splitlines() == told, done.stderr


@pytest.mark.slow
def test_the_section_on_verifiers_exports(tmp_path: Path) -> None:
    _, export = blocks("verifiers", "bash")
    done = gavel(*export.split()[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (program,) = blocks("verifiers", "python")
    written = (tmp_path / "desk" / "gavel_returns_desk.py").read_text()
    assert program.splitlines()[0] in written
    assert program.splitlines()[-1] in written


@pytest.mark.bridges
async def test_the_section_on_gymnasium_runs() -> None:
    pytest.importorskip("gymnasium")
    (program,) = blocks("reasoning-gym, textarena, Gymnasium", "python")
    names: dict[str, Any] = {}
    exec(compile(program, "bridges.md", "exec"), names)
    corridor = names["corridor"]
    turns = [call("act", i, action="right") for i in range(2)]
    found = await rollout(script_of(turns), corridor, corridor.tasks()[0])
    assert found.metrics["success"] == 1.0
    assert "You stand at 4 of 4." in found.messages()[-1]["content"]


@pytest.mark.slow
def test_the_section_on_agent_styles_runs(tmp_path: Path) -> None:
    text = section("Agent styles")
    (commands,) = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    for line in commands.splitlines():
        done = gavel(*line.split()[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_section_on_rl4lms_runs(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    (program,) = blocks("RL4LMs", "python")
    (tmp_path / "texts.py").write_text(program)
    done = script(tmp_path / "texts.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (told,) = re.findall(r"^print\(.*\)  # (.*)$", program, re.MULTILINE)
    assert told in done.stdout.splitlines()
    assert (tmp_path / "runs" / "texts" / "ppo" / "checkpoints" / "000002").is_dir()


@pytest.mark.slow
def test_the_program_on_verl_prints_what_it_says(tmp_path: Path) -> None:
    (program,) = blocks("verl", "python")
    (tmp_path / "program.py").write_text(program)
    told = re.findall(r"^print\(.*\)  # (.*)$", program, re.MULTILINE)
    done = script(tmp_path / "program.py", cwd=tmp_path)
    assert done.stdout.splitlines() == told, done.stderr


@pytest.mark.slow
def test_the_section_on_atropos_trains_what_is_sent(tmp_path: Path) -> None:
    serve, send = "".join(blocks("Atropos", "bash")).splitlines()
    words = re.sub(r"port \d+", "port 0", serve).split()[1:]
    server = start_gavel(*words, cwd=tmp_path)
    try:
        server.wait_for("groups waiting")
        api, policy = re.findall(r"http://[\d.:]+\d", server.stdout)[:2]
        words = send.replace("http://127.0.0.1:8000", api).replace("http://127.0.0.1:8001", policy).split()[1:]
        sent = gavel(*words, cwd=tmp_path)
        assert sent.returncode == 0, sent.stderr
    except BaseException:
        server.send(signal.SIGTERM)
        raise
    ended = server.end()
    assert ended.returncode == 0, ended.stderr
    assert "step 2/2" in ended.stdout


@pytest.mark.slow
def test_the_section_on_verl_exports_and_reads_back(tmp_path: Path) -> None:
    train, export = "".join(blocks("verl", "bash")).splitlines()
    done = gavel(*export.split()[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "returns-desk-verl"
    (tmp_path / "reward.py").write_text("def compute_score(solution_str, **known):\n    return 1.0\n")
    words = shlex.split(train.replace("train.parquet", str(folder / "train.parquet")))[1:]
    done = gavel(*(word.replace("=test.parquet", f"={folder / 'test.parquet'}") for word in words), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
