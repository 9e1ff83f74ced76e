"""A group reward function of verifiers' `Rubric` over its release 0.1.14: real groups of a scripted policy."""

from typing import Any

import pytest

pytest.importorskip("verifiers.rubrics.rubric", reason="make test-adapters installs verifiers 0.1")

import verifiers as vf
from datasets import Dataset
from verifiers.types import ClientConfig

from gavel.integrations.verifiers import rubric_func
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.truth import truth_of
from tests.endpoint import Endpoint, says
from tests.integrations.adapters_page import run
from tests.integrations.worth_judge import WorthJudge

pytestmark = pytest.mark.adapters

ROWS = [{"question": "What is it worth?", "answer": "42", "info": {"rubric": "Be right."}}]


async def rollouts(endpoint: Endpoint, rubric: Any, *answers: Any, environment: Any = None) -> Any:
    """The outputs of a group, by what the policy said."""
    endpoint.script = [(lambda _, text=text: says(text)) if isinstance(text, str) else text for text in answers]
    env = environment or vf.SingleTurnEnv(dataset=Dataset.from_list(ROWS), rubric=rubric)
    client = ClientConfig(api_base_url=f"{endpoint.url}/v1", api_key_var="NO_KEY")
    inputs = [env.get_dataset()[0]] * len(answers)
    return await env.run_group(inputs, client, "policy", {})


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_KEY", "none")


def rubric(judge: Any, **options: Any) -> Any:
    return vf.Rubric(funcs=[rubric_func(judge, **options)])


def said(output: Any) -> str:
    return output["completion"][-1]["content"] if output["completion"] else ""


async def test_each_rollout_gets_its_score(endpoint: Endpoint):
    judge = WorthJudge()
    outputs = await rollouts(endpoint, rubric(judge), "worth 90", "worth 20", "worth 50")
    assert {said(output): output["reward"] for output in outputs} == {"worth 90": 0.9, "worth 20": 0.2, "worth 50": 0.5}
    assert all(output["judge"] == output["reward"] and output["error"] is None for output in outputs)
    truth = truth_of(judge.groups[0])
    assert (truth.reference, truth.rubric) == ("42", "Be right.")


@pytest.mark.parametrize(("unscored", "failed"), [("member", ["worth 99, withheld"]), ("group", None)])
async def test_a_rollout_without_a_score_has_an_error(endpoint: Endpoint, unscored: Any, failed: Any):
    answers = ("worth 90", "worth 99, withheld", "worth 10")
    outputs = await rollouts(endpoint, rubric(WorthJudge(), unscored=unscored), *answers)
    assert sorted(said(output) for output in outputs if output["error"]) == sorted(failed or answers)
    assert "its votes were lost" in str([output["error"] for output in outputs])
    if unscored == "member":
        assert {said(output): output["reward"] for output in outputs}["worth 99, withheld"] == 0.5


async def test_a_judge_that_cannot_be_asked_leaves_errors_and_no_zeros_in_silence(endpoint: Endpoint):
    class Broken(WorthJudge):
        async def score(self, group: Any, **options: Any) -> Any:
            raise JudgeError("the key is wrong.")

    outputs = await rollouts(endpoint, rubric(Broken()), "worth 90", "worth 10")
    assert all("the key is wrong" in str(output["error"]) for output in outputs)


async def test_the_page_s_rubric_judges(endpoint: Endpoint):
    names = run("verifiers' rubrics")
    outputs = await rollouts(endpoint, None, "It is 9 days old.", " ", environment=names["load_environment"]())
    assert {said(output): output["reward"] for output in outputs} == {"It is 9 days old.": 1.0, " ": 0.0}
