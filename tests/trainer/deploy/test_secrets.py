"""No key of a host is in its output, its run directory or a command line, whatever the host answers with it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fake_server import Answer, Call
from tests.forked import Running
from tests.planted_secrets import Watcher, planted_files
from tests.trainer.deploy import test_kills
from tests.trainer.deploy.test_kills import Killer, Target, a_run

pytestmark = pytest.mark.slow
_WRONG = "PLANTED0wrong0key0that0its0host0repeats0000"
"""Forty characters and more, as W&B wants them."""
_PROGRAM = test_kills._PROGRAM.replace("waiting.PAUSE =", "retry.repeated.__kwdefaults__['patience'] = waiting.PAUSE =")


def repeating(kind: Callable[[Killer], Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[Killer], Any]:
    """The host, which answers whoever shows the wrong key with that key."""
    from tests.trainer.deploy.fakes import scripted

    respond = scripted.ScriptedHost.respond

    def answered(fake: scripted.ScriptedHost, call: Call) -> Answer:
        if _WRONG in call.headers.get("authorization", ""):
            return fake.error(401, f"Incorrect API key provided: {_WRONG}")
        return respond(fake, call)

    monkeypatch.setattr(scripted.ScriptedHost, "respond", answered)
    return kind


@pytest.mark.parametrize(
    "kind", [test_kills.vllm, test_kills.together, test_kills.fireworks, test_kills.huggingface, test_kills.wandb]
)
def test_no_key_of_a_host_is_written_or_shown(
    kind: Callable[[Killer], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, program = tmp_path / "runs", tmp_path / "typed.py"
    program.write_text(_PROGRAM)
    target: Target
    with repeating(kind, monkeypatch)(Killer(at=-1)) as target:
        a_run(runs, target.base)
        variable = next((name for name in target.environment if name.endswith(("_KEY", "_TOKEN"))), "VLLM_API_KEY")
        key = target.environment.get(variable, "PLANTED-right-key")
        watcher = Watcher(key, _WRONG)

        def typed(*arguments: str, **given: str) -> int:
            environment = os.environ | target.environment | {"GAVEL_RUNS": str(runs), "HOME": str(tmp_path)}
            done = Running([str(program), *arguments], tmp_path, {**environment, variable: key} | given, program).end()
            with (tmp_path / "output.log").open("a") as log:
                log.write(done.stdout + done.stderr)
            return done.returncode

        command = ("deploy", "desk/clerk@12", target.address, "--no-smoke-test", *target.options)
        with watcher.watching():
            for wrong in (_WRONG, f"{_WRONG}\nmore", f"{_WRONG}é"):
                refused = typed(*command, **{variable: wrong})
                assert refused == 1 or variable == "VLLM_API_KEY"
            assert typed(*command) == 0
            assert typed("deployments", "--status", "--json") == typed("undeploy", "desk/clerk") == 0
        told = (tmp_path / "output.log").read_text()
        assert "Traceback" not in told
        assert (planted_files(tmp_path, [key, _WRONG]), watcher.found) == ([], set())
