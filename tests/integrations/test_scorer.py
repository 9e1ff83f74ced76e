"""Groups scored with whatever was named as the judge."""

import asyncio
import pickle
from collections.abc import Callable

import pytest

import gavel
from gavel.integrations._rewards import Scorer, member
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.group import TrajectoryGroup

GROUP = TrajectoryGroup([member("Is it done?", "Yes, it is done."), member("Is it done?", "")])
WAYS: dict[str, Callable[[], Scorer]] = {
    "a model": lambda: Scorer("stand-in", "- ends with a message"),
    "a judge": lambda: Scorer(gavel.Judge("stand-in", rubric="- ends with a message")),
    "settings": lambda: Scorer(gavel.JudgeConfig(models="stand-in", rubric="- ends with a message")),
    "a pickled model": lambda: pickle.loads(pickle.dumps(Scorer("stand-in", "- ends with a message"))),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_judge_may_be_named_in_several_ways(way: str):
    scorer = WAYS[way]()
    (judged,) = scorer.score_all_now([GROUP])
    assert [trajectory.reward for trajectory in judged] == [1.0, 0.0]


async def test_one_scorer_serves_several_loops_and_threads():
    scorer = Scorer("stand-in", "- ends with a message")
    here = await scorer.score_all([GROUP, GROUP])
    in_threads = await asyncio.gather(*(asyncio.to_thread(scorer.score_all_now, [GROUP]) for _ in range(3)))
    in_new_loop = await asyncio.to_thread(lambda: asyncio.run(scorer.score(GROUP)))
    rewards = [[t.reward for t in judged] for judged in (*here, *(one for (one,) in in_threads), in_new_loop)]
    assert rewards == [[1.0, 0.0]] * 6


def test_the_environment_names_the_service_or_the_model(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GAVEL_JUDGE_URL", raising=False)
    monkeypatch.delenv("GAVEL_JUDGE_MODEL", raising=False)
    with pytest.raises(JudgeError, match="no judge model is named"):
        Scorer()
    monkeypatch.setenv("GAVEL_JUDGE_MODEL", "stand-in")
    (judged,) = Scorer().score_all_now([GROUP])
    assert judged.judgement is not None
    assert judged.judgement.models == ["gavel/stand-in"]


def test_a_judge_object_does_not_go_to_another_process_and_says_what_does():
    with pytest.raises(JudgeError, match=r"JudgeConfig"):
        pickle.dumps(Scorer(gavel.Judge("stand-in")))


def test_a_judge_with_a_rubric_is_given_no_other():
    with pytest.raises(JudgeError, match="has its own rubric"):
        Scorer(gavel.Judge("stand-in"), rubric="Be brief.")


def test_the_judge_s_error_reaches_the_hook():
    with pytest.raises(JudgeError, match="no messages"):
        Scorer("stand-in").score_all_now([GROUP, TrajectoryGroup([gavel.Trajectory(), gavel.Trajectory()])])
