"""What docs/bridges.md shows runs as shown."""

import re
import shlex
import signal
from pathlib import Path

import pytest

from tests.forked import script, start_gavel, succeed
from tests.gavel.page_walker import blocks

PAGE = Path(__file__).parents[2] / "docs" / "bridges.md"


def run_commands(block: str, cwd: Path) -> None:
    for line in block.replace('"', "").splitlines():
        succeed(*shlex.split(line)[1:], cwd=cwd)


@pytest.mark.slow
def test_the_section_on_agentgym_runs(tmp_path: Path) -> None:
    from_elsewhere, serve = blocks(PAGE, "bash", "AgentGym")
    server = start_gavel(*re.sub(r"--port \d+", "--port 0", serve).split()[1:], cwd=tmp_path)
    try:
        server.wait_for("http://")
        (url,) = re.findall(r"http://[\d.:]+", server.stdout)[:1]
        run_commands(from_elsewhere.replace("http://127.0.0.1:36001", url), tmp_path)
    finally:
        server.send(signal.SIGTERM)
        assert server.end().returncode == 0


@pytest.mark.slow
def test_the_section_on_agent_styles_runs(tmp_path: Path) -> None:
    (commands,) = blocks(PAGE, "bash", "Agent styles")
    run_commands(commands, tmp_path)


RUN = """
import asyncio

async def main():
    model = gavel.TrainableModel(name="ppo", project="texts", base_model="embedded/returns-desk")
    async with gavel.LocalBackend(max_context=128) as backend:
        await model.register(backend)
        await train(model)

asyncio.run(main())
"""


@pytest.mark.slow
def test_the_program_on_rl4lms_runs(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    (program,) = blocks(PAGE, "python", "RL4LMs")
    (tmp_path / "program.py").write_text(program + RUN)
    done = script(tmp_path / "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
