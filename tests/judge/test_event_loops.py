"""One judge in scripts, notebooks and threads: in several event loops, one after another and at once."""

import asyncio
import threading
from pathlib import Path

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.judge.panel.polling import LONG
from gavel.llm.budget import Budget
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import History, Trajectory
from tests.endpoint import Endpoint, scores
from tests.judge.groups import choice, saying
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow

PRICE = {"openai/judge": (2.0, 8.0)}
COST = (100 * 2 + 20 * 8) / 1e6
"""Of one call."""


@pytest.fixture
def judge(endpoint: Endpoint, tmp_path: Path) -> Judge:
    endpoint.script = [scores(0.75, 0.25)]
    juror = Juror("openai/judge", params=endpoint.params)
    budget = Budget(max_cost_usd=5)
    return Judge(
        juror,
        budget=budget,
        prices=PRICE,
        cassette=tmp_path / "c.sqlite",
        concurrency=4,
        config=JudgeConfig(requests_per_minute=6000),
    )


def statuses(judged: list[TrajectoryGroup]) -> list[str]:
    return [group.judgement.status for group in judged if group.judgement]


async def score_all(judge: Judge, name: str, count: int = 6) -> list[TrajectoryGroup]:
    return list(await asyncio.gather(*(judge.score(saying(f"{name} {n}", "other")) for n in range(count))))


def test_a_script_may_start_a_loop_for_each_group(judge: Judge):
    judged = [asyncio.run(judge.score(saying(f"a {n}", "b"))) for n in range(4)]
    assert statuses(judged) == ["scored"] * 4
    assert judge.budget.spent_usd == pytest.approx(8 * COST)


def test_threads_with_loops_of_their_own_share_a_judge(judge: Judge, endpoint: Endpoint):
    judged: list[TrajectoryGroup] = []
    threads = [
        threading.Thread(target=lambda name=name: judged.extend(asyncio.run(score_all(judge, f"thread {name}"))))
        for name in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert statuses(judged) == ["scored"] * 24
    assert len(endpoint.requests) == 48
    assert judge.budget.spent_usd == pytest.approx(48 * COST)


LONG_TEXT = "word " * LONG


@pytest.mark.parametrize("beside", [False, True], ids=["history", "further history"])
@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": LONG_TEXT},
        {"role": "user", "content": [{"type": "text", "text": LONG_TEXT}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": LONG_TEXT}}]},
        choice(LONG_TEXT),
        choice(calls=[("f", LONG_TEXT)]),
    ],
    ids=["text", "parts", "arguments", "said", "called"],
)
async def test_long_text_is_read_beside_the_event_loop_wherever_it_stands(item, beside, monkeypatch):
    threads: list[int] = []

    def read(*args):
        threads.append(threading.get_ident())
        raise JudgeError("read")

    monkeypatch.setattr("gavel.judge.judge.read_attempts", read)
    short = Trajectory(messages_and_choices=[{"role": "user", "content": "hi"}, choice("hello")])
    long = Trajectory(messages_and_choices=[item])
    if beside:
        long = short.model_copy(update={"additional_histories": [History(messages_and_choices=[item])]})
    for group in ([short] * 2, [short, long]):
        with pytest.raises(JudgeError, match="read"):
            await Judge("stand-in").score(TrajectoryGroup(group))
    assert [thread == threading.get_ident() for thread in threads] == [True, False]
