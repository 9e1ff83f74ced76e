"""eval-protocol's groupwise evaluators over its own release, without a model: rows that were rolled out before."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("eval_protocol", reason="make test-adapters installs eval-protocol")

from eval_protocol.models import EvaluationRow, Message, Status

from gavel.integrations._rewards import Unscored
from gavel.integrations.eval_protocol import evaluate
from gavel.scenarios.truth import truth_of
from tests.endpoint import Endpoint, says
from tests.integrations.adapters_page import program
from tests.integrations.judges import WorthJudge
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.adapters

ROOT = Path(__file__).parents[2]
SHOW = """

evaluated = judged


async def judged(rows):
    import json, pathlib

    scored = await evaluated(rows)
    found = [[row.messages[-1].content, row.evaluation_result.score] for row in scored]
    pathlib.Path("scores.json").write_text(json.dumps(found))
    return scored
"""
"""Keeps what the page's evaluator found."""


def row(answer: str, **fields: Any) -> EvaluationRow:
    said = [Message(role="user", content="What is it worth?"), Message(role="assistant", content=answer)]
    return EvaluationRow(messages=said, **fields)


async def test_each_row_gets_its_score_and_the_reason_for_it():
    judge = WorthJudge()
    rows = [row("worth 90", ground_truth="42"), row("worth 20", ground_truth="42")]
    assert await evaluate(judge)(rows) is rows
    results = [one.evaluation_result for one in rows]
    assert [(found.score, found.is_score_valid) for found in results if found] == [(0.9, True), (0.2, True)]
    assert results[0] is not None
    assert results[0].reason == "worth 90"
    assert truth_of(judge.groups[0]).reference == "42"


CASES: list[tuple[Unscored, list[bool]]] = [("member", [True, False, True]), ("group", [False] * 3)]


@pytest.mark.parametrize(("unscored", "valid"), CASES)
async def test_a_row_without_a_score_has_an_invalid_one(unscored: Unscored, valid: list[bool]):
    rows = [row("worth 90"), row("worth 99, withheld"), row("worth 10")]
    await evaluate(WorthJudge(), unscored=unscored)(rows)
    results = [one.evaluation_result for one in rows]
    assert [found.is_score_valid for found in results if found] == valid
    assert results[1] is not None
    assert results[1].error == "its votes were lost"


async def test_a_rollout_that_failed_is_not_judged():
    rows = [row("worth 90"), row("worth 1"), row("worth 10")]
    rows[1].rollout_status = Status.rollout_unknown_error("the server was gone")
    await evaluate(WorthJudge())(rows)
    assert [one.evaluation_result.is_score_valid for one in rows if one.evaluation_result] == [True, False, True]
    assert "the server was gone" in str(rows[1].evaluation_result)


def test_the_page_s_evaluator_runs_in_the_framework_s_own_runner(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [lambda request: says("It is 9 days old." if request["model"] == "policy-a" else "")]
    (tmp_path / "test_desk.py").write_text(program("eval-protocol") + SHOW)
    policy = {"OPENAI_API_BASE": f"{endpoint.url}/v1", "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    environment = {**os.environ, **policy, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_desk.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(json.loads((tmp_path / "scores.json").read_text())) == [["", 0.0], ["It is 9 days old.", 1.0]]
