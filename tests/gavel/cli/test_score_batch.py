"""`gavel score --batch`, as its user meets it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.base.errors import GavelError
from gavel.cli.score import score_and_print
from gavel.judge.config import JudgeConfig
from gavel.llm import batch as batch_module
from gavel.llm.client import PROBE_MESSAGES
from gavel.scenarios.formats.reading import read_file
from gavel.scenarios.group import TrajectoryGroup
from tests.batches import BatchService
from tests.endpoint import Answer, Request, says, scores
from tests.judge.groups import saying
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow

GROUPS = 6


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchService]:
    monkeypatch.setattr(batch_module, "POLL_SECONDS", (0.01, 0.02))
    service = BatchService()
    yield service
    service.close()


@pytest.fixture
def config(service: BatchService) -> JudgeConfig:
    return JudgeConfig(models="openai/judge", params=service.params, prices={"openai/judge": (2, 8)})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "groups.jsonl"
    path.write_text("".join(saying(f"a {n}", f"b {n}").to_json() + "\n" for n in range(GROUPS)))
    return path


def read(path: Path) -> list[TrajectoryGroup]:
    return read_file(path).groups


def one_is_unusable_at_first(request: Request) -> Answer:
    """Answers one order of one group with prose, until it is told why that cannot be used."""
    shown = request["messages"][1]["content"]
    if len(request["messages"]) == 2 and "a 2" in shown and shown.index("a 2") < shown.index("b 2"):
        return says("The first is better.", {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120})
    return scores(0.75, 0.25)(request)


def test_scores_come_through_batches_at_half_the_price_and_repairs_through_a_second_one(
    service, config, file, tmp_path, capsys
):
    service.answer = one_is_unusable_at_first
    out = tmp_path / "judged.jsonl"
    score_and_print(file, config, out=out, batch=True)
    judged = read(out)
    assert {group.judgement.status for group in judged if group.judgement} == {"scored"}
    assert len(service.batches) == 2
    assert [len(batch.requests) for batch in service.batches.values()] == [2 * GROUPS, 1]
    usd = sum(group.judgement.cost_usd or 0 for group in judged if group.judgement)
    assert usd == pytest.approx((2 * GROUPS + 1) * (100 * 2 + 20 * 8) / 1e6 / 2)
    assert sum(group.judgement.calls for group in judged if group.judgement) == 2 * GROUPS + 1
    assert "12 of 12 answered" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} >= {"judged.jsonl", "cassettes.sqlite"}
    assert not (tmp_path / "judged.jsonl.batch").exists()

    out.unlink()
    score_and_print(file, config, out=out, batch=True)
    assert len(service.batches) == 2
    assert [[t.reward for t in group] for group in read(out)] == [[t.reward for t in group] for group in judged]


def test_the_scores_are_those_of_single_calls(service, config, file, tmp_path, endpoint):
    endpoint.script = [lambda r: scores(0.75, 0.25)(r) if r["messages"] != PROBE_MESSAGES else says("yes")]
    score_and_print(file, config, out=tmp_path / "batched" / "out.jsonl", batch=True)
    single = config.model_copy(update={"params": endpoint.params})
    score_and_print(file, single, out=tmp_path / "single" / "out.jsonl")
    rewards = [
        [[t.reward for t in group] for group in read(tmp_path / way / "out.jsonl")] for way in ("batched", "single")
    ]
    assert rewards[0] == rewards[1]
    asked = {json.dumps(request["body"]["messages"]) for request in service.batches["batch_1"].requests}
    assert asked == {json.dumps(r["messages"]) for r in endpoint.requests if r["messages"] != PROBE_MESSAGES}


@pytest.mark.parametrize("out", [None, Path("-"), Path("/dev/null")])
def test_batches_need_a_file_to_be_kept_beside(service, config, file, out):
    with pytest.raises(GavelError, match="need a file") as error:
        score_and_print(file, config, out=out, batch=True)
    assert "--out" in error.value.remedy


def test_a_vendor_without_batches_is_told_before_anything_is_asked(service, config, file, tmp_path):
    other = config.model_copy(update={"models": "ollama/qwen3"})
    with pytest.raises(GavelError, match="cannot be asked in batches"):
        score_and_print(file, other, out=tmp_path / "judged.jsonl", batch=True)
    assert list(tmp_path.glob("judged.jsonl*")) == []


DRIVER = """
import os, sys
from pathlib import Path
from gavel.cli.score import score_and_print
from gavel.judge.config import JudgeConfig
from gavel.llm import batch
from gavel.llm.providers import load_litellm
batch.POLL_SECONDS, batch._GRACE_SECONDS = (.01, .02), .2
load_litellm()
config = JudgeConfig.model_validate_json(sys.argv[1])
while True:
    if (child := os.fork()) == 0:
        sys.stdin.readline()
        score_and_print(Path(sys.argv[2]), config, out=Path(sys.argv[3]), batch=True)
        os._exit(0)
    print(child, flush=True)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_a_kill_at_any_moment_loses_nothing_and_pays_for_nothing_twice(service, config, file, tmp_path):
    """The first process is killed when its first request was carried out, the second at its second, and so on."""
    service.answer = one_is_unusable_at_first
    out = tmp_path / "judged.jsonl"
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, config.model_dump_json(), str(file), str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert driver.stdin is not None
    assert driver.stdout is not None
    kills, calls, victim = 0, 0, 0

    def kill(method: str, path: str) -> None:
        nonlocal kills, calls
        calls += 1
        if victim and calls == kills + 1:
            kills += 1
            os.kill(victim, signal.SIGKILL)

    service.before_answer = kill
    try:
        while line := driver.stdout.readline():
            if not line.strip().isdigit():
                break
            victim, calls = int(line), 0
            driver.stdin.write("go\n")
            driver.stdin.flush()
        assert driver.wait(HANG_SECONDS) == 0
    finally:
        driver.kill()
    assert kills >= 4
    assert set(service.asked.values()) == {1}
    assert len(service.asked) == 2 * GROUPS + 1
    judged = read(out)
    assert [group.judgement.status for group in judged if group.judgement] == ["scored"] * GROUPS
    assert sum(group.judgement.calls for group in judged if group.judgement) == 2 * GROUPS + 1


@pytest.mark.parametrize("mode", ["decisions", "readout"])
def test_a_mode_that_reads_probabilities_is_refused_before_a_batch_is_sent(
    file: Path, config: JudgeConfig, tmp_path: Path, mode: str
):
    with pytest.raises(GavelError, match=f"the mode {mode} reads probabilities"):
        score_and_print(file, config.model_copy(update={"mode": mode}), out=tmp_path / "out.jsonl", batch=True)
    assert not list(tmp_path.glob("out*"))
