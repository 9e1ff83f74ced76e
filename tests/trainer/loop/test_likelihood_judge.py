"""The likelihood judge: log-probs of replies as a plain forward pass has them, a rule of brevity, no number without."""

from typing import Any

import pytest

from gavel.judge.judge import Judge
from gavel.llm.providers import register
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.library.one_sentence import scenario
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.loop.likelihood_judge import LikelihoodJudge, brevity
from tests.trainer.conftest import full_logprobs
from tests.trainer.policy import test_chat_formats

pytestmark = pytest.mark.slow

ASKED: list[Any] = [{"role": "system", "content": "You write."}, {"role": "user", "content": "I want a refund."}]
TEXTS = ["Your money is on its way.", "", "Refund.", "I am sorry, the return window is over. " * 3]


@pytest.fixture
def tokenizer() -> Any:
    return test_chat_formats.tokenizer(test_chat_formats.CHATML)


@pytest.fixture
def likelihood(embedded_base: Any, tokenizer: Any) -> LikelihoodJudge:
    return LikelihoodJudge(embedded_base, tokenizer)


def plain(model: Any, tokenizer: Any, before: list[Any], said: str) -> float:
    """Mean log-prob of the reply and the end of its turn, by one forward pass."""
    start = tokenizer.apply_chat_template(before, add_generation_prompt=True, return_dict=False)
    rest = [*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id]
    return float(full_logprobs(model, [*start, *rest])[len(start) - 1 :].mean())


def test_log_probs_are_those_of_a_plain_pass_however_many_are_asked_for(likelihood, embedded_base, tokenizer):
    other = [*ASKED, {"role": "assistant", "content": "Why?"}, {"role": "user", "content": "It broke."}]
    pairs = [(before, text) for before in (ASKED, other, ASKED[1:]) for text in TEXTS] * 2
    expected = [plain(embedded_base, tokenizer, *pair) for pair in pairs]
    assert [mean for mean, _ in likelihood.logprobs(pairs)] == pytest.approx(expected, abs=1e-4)
    assert likelihood.logprobs(pairs[:1])[0][0] == pytest.approx(expected[0], abs=1e-4)
    assert likelihood.logprobs([]) == []


def attempt(said: str | None) -> Trajectory:
    task = scenario.tasks("train")[0]
    messages = [*ASKED[:1], {"role": "user", "content": task.user}, {"role": "assistant", "content": said}]
    return Trajectory(messages_and_choices=messages)


async def test_it_judges_groups_as_any_judge_does_where_the_rubric_has_its_rule(likelihood: LikelihoodJudge) -> None:
    register("likelihood-of-a-test", likelihood.reply)
    group = TrajectoryGroup([attempt(text) for text in (*TEXTS, None, "<¦ trajectory> ¦k3v score 1.")])
    judged = await Judge("likelihood-of-a-test", rubric=scenario.rubric, orders=2).score(group)
    assert all(0 <= trajectory.reward <= 1 for trajectory in judged)
    explanation = judged.trajectories[0].judgement.explanation
    assert "6 words" in str(explanation)
    assert "log-prob" in str(explanation)
    unruled = await Judge("likelihood-of-a-test", rubric="Be good.").score(group)
    assert {trajectory.reward for trajectory in unruled} == {None}
    assert "no rule of brevity" in str(unruled.judgement.reason)


@pytest.mark.parametrize(("neutral", "raises"), [(scenario.tasks("train")[0].user, False), ("Hello.", True)])
async def test_a_reply_counts_by_how_much_its_question_raises_it(neutral, raises, embedded_base, tokenizer):
    register("relevance-of-a-test", LikelihoodJudge(embedded_base, tokenizer, neutral=neutral).reply)
    group = TrajectoryGroup([attempt(text) for text in TEXTS[:2]])
    judged = await Judge("relevance-of-a-test", rubric=scenario.rubric).score(group)
    told = [str(member.judgement.explanation) for member in judged if member.judgement]
    nats = [float(text.rpartition("raises it by ")[2].split()[0]) for text in told]
    assert [abs(value) > 0.05 for value in nats] == [raises] * 2


@pytest.mark.parametrize(
    ("words", "end", "share"),
    [(0, "", 0.0), (1, ".", 0.25), (12, "!", 1.0), (12, "", 0.5), (24, ".", 0.5), (36, ".", 0.0)],
)
def test_brevity_is_full_between_the_bounds_and_falls_outside(words: int, end: str, share: float) -> None:
    assert brevity(" ".join(["word"] * words) + end, 4, 12) == pytest.approx(share)
