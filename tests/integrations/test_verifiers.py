"""verifiers' `Env.finalize` over its own release: real episodes of a real taskset, with a scripted policy."""

from pathlib import Path
from typing import Any

import pytest

vf = pytest.importorskip("verifiers.v1", reason="make test-adapters installs verifiers")

from gavel.integrations.verifiers import finalize  # noqa: E402
from gavel.scenarios.errors import JudgeError  # noqa: E402
from gavel.scenarios.truth import truth_of  # noqa: E402
from tests.endpoint import Endpoint, fails, says  # noqa: E402
from tests.integrations.adapters_page import program  # noqa: E402
from tests.integrations.judges import WorthJudge  # noqa: E402

pytestmark = pytest.mark.adapters

TASKS = """
import openai
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult


class DeskData(vf.TaskData):
    answer: str


class Desk(vf.Taskset[vf.Task[DeskData, vf.State, vf.TaskConfig], vf.TasksetConfig]):
    def load(self):
        yield vf.Task[DeskData, vf.State, vf.TaskConfig](
            DeskData(prompt="What is it worth?", answer="42"), self.config.task
        )


class OneTurn(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False
    APPENDS_SYSTEM_PROMPT = True

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            messages = [{"role": "user", "content": data.prompt}]
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return ProgramResult(0, "", "")


__all__ = ["Desk", "OneTurn"]
"""
ENVIRONMENT = """
from verifiers.v1.envs.best_of_n import BestOfNEnv


class Judged(BestOfNEnv):
    judged = None

    async def finalize(self, task, episode):
        await type(self).judged(task, episode)


__all__ = ["Judged"]
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "desk_tasks.py").write_text(TASKS)
    (tmp_path / "judged_desk.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NO_KEY", "none")
    return tmp_path


async def episode(endpoint: Endpoint, *answers: Any, judged: Any = None, environment: str = "judged-desk") -> Any:
    """An episode of the environment: as many attempts as the policy has answers, judged by the hook."""
    from verifiers.v1.configs.client import EvalClientConfig
    from verifiers.v1.utils.loaders import environment_class, load_environment, resolve_env_config

    endpoint.script = [(lambda _, text=text: says(text)) if isinstance(text, str) else text for text in answers]
    config = {"id": environment, "taskset": {"id": "desk-tasks"}, "n": len(answers)}
    agent = {"harness": {"id": "desk-tasks"}, "runtime": {"type": "subprocess"}}
    env = load_environment(resolve_env_config({**config, "agent": agent}))
    if judged is not None:
        environment_class("desk-tasks", environment).judged = staticmethod(judged)
    client = EvalClientConfig(base_url=f"{endpoint.url}/v1", api_key_var="NO_KEY")
    async with env.serving():
        (slot,) = env.slots(next(iter(env.taskset)))
        return await env.run_slot(slot, vf.ModelContext(model="policy", client=client))


@pytest.mark.usefixtures("plugins")
class TestEpisodes:
    async def test_each_attempt_gets_its_score_as_a_reward(self, endpoint: Endpoint):
        judge = WorthJudge()
        hook = finalize(judge, weight=0.5)
        done = await episode(endpoint, "worth 90", "worth 20", "worth 50", judged=hook)
        assert done.ok, done.errors
        by_answer = {trace.last_reply: trace for trace in done.traces}
        assert {answer: trace.rewards["judge"].score for answer, trace in by_answer.items()} == {
            "worth 90": 0.9,
            "worth 20": 0.2,
            "worth 50": 0.5,
        }
        assert by_answer["worth 90"].reward == 0.45
        assert by_answer["worth 90"].info["judge"]["explanation"] == "worth 90"
        assert truth_of(judge.groups[0]).reference == "42"
        assert vf.WireEpisode.model_validate_json(done.model_dump_json()).traces[0].rewards["judge"].weight == 0.5

    @pytest.mark.parametrize(("unscored", "failed"), [("member", 1), ("group", 3), ("raise", 3)])
    async def test_an_attempt_without_a_score_is_a_failed_trace(self, endpoint: Endpoint, unscored: Any, failed: int):
        hook = finalize(WorthJudge(), unscored=unscored)
        done = await episode(endpoint, "worth 90", "worth 99 withheld", "worth 50", judged=hook)
        assert not done.ok
        assert sum(not trace.ok for trace in done.traces) == failed
        assert all(trace.ok == ("judge" in trace.rewards) for trace in done.traces)
        assert "its votes were lost" in str([trace.errors for trace in done.traces])
        assert bool(done.errors) == (unscored == "raise")

    async def test_an_attempt_that_failed_before_is_not_judged(self, endpoint: Endpoint):
        judge = WorthJudge()
        hook = finalize(judge)
        done = await episode(endpoint, "worth 90", fails(400), "worth 50", judged=hook)
        assert sorted(trace.reward for trace in done.traces if trace.ok) == [0.5, 0.9]
        assert [len(group) for group in judge.groups] == [2]

    async def test_a_judge_that_cannot_be_asked_fails_the_episode(self, endpoint: Endpoint):
        class Broken(WorthJudge):
            async def score(self, group: Any) -> Any:
                raise JudgeError("the key is wrong.")

        done = await episode(endpoint, "worth 90", "worth 1", judged=finalize(Broken()))
        assert "the key is wrong" in done.errors[-1].message
        assert not any(trace.ok for trace in done.traces)

    async def test_the_page_s_environment_judges(self, endpoint: Endpoint, plugins: Path):
        (plugins / "judged_env.py").write_text(program("verifiers"))
        done = await episode(endpoint, "It is 9 days old.", "", environment="judged-env")
        assert done.ok, (done.errors, [trace.errors for trace in done.traces])
        assert {trace.last_reply: trace.reward for trace in done.traces} == {"It is 9 days old.": 1.0, "": 0.0}
