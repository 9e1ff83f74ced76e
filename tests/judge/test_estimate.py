import re

import pytest

from gavel.judge.config import JudgeConfig
from gavel.judge.estimate import estimate_groups
from gavel.judge.judge import Judge
from gavel.judge.panel.juror import Juror
from gavel.llm.budget import Budget
from gavel.scenarios.group import TrajectoryGroup
from tests.endpoint import Endpoint, scores
from tests.judge.groups import saying

GROUPS = [saying("a", "b", "c"), saying("d", "e"), saying("same", "same"), TrajectoryGroup([])]


@pytest.mark.parametrize(
    ("options", "calls"),
    [({}, 4), ({"orders": 3}, 6), ({"mode": "pairwise", "orders": 1}, 4)],
)
async def test_an_estimate_counts_the_calls_that_judging_makes(endpoint: Endpoint, options, calls):
    endpoint.script = [scores(0.75, 0.25)]
    juror = Juror("openai/judge", params=endpoint.params)
    estimate = await estimate_groups(Judge(juror, **options), GROUPS)
    assert endpoint.requests == []
    judge = Judge(juror, **options)
    for group in GROUPS[:3]:
        await judge.score(group)
    assert estimate.calls == len(endpoint.requests) == calls


async def test_a_jury_is_asked_all_its_first_models_and_no_fallback():
    judge = Judge([Juror(["openai/gpt-4o", "openai/o3"]), "openai/gpt-5-mini"], orders=2)
    estimate = await estimate_groups(judge, GROUPS[:1])
    assert (estimate.calls, estimate.unpriced) == (4, ())
    assert estimate.completion_tokens == 4 * 3 * 80 + 2 * 1500
    assert estimate.cost_usd > 0


async def test_an_estimate_needs_neither_key_nor_price_nor_budget():
    judge = Judge("openai/mine", budget=Budget(max_cost_usd=1e-9))
    estimate = await estimate_groups(judge, GROUPS)
    assert estimate.unpriced == ("openai/mine",)
    assert "cost unknown: openai/mine has no price" in estimate.words


async def test_prompt_tokens_are_those_of_the_prompts_that_judging_sends():
    asked: list[int] = []

    async def mine(messages, schema):
        asked.append(sum(len(re.findall(r"\w+|\W", message["content"])) for message in messages))
        return "no"

    judge = Judge(mine, orders=2, config=JudgeConfig(content_retries=0))
    estimate = await estimate_groups(judge, GROUPS[:1])
    assert asked == []
    await judge.score(GROUPS[0])
    assert 0.3 * sum(asked) < estimate.prompt_tokens < 1.5 * sum(asked)


@pytest.mark.parametrize(("mode", "tokens"), [("decisions", 0), ("readout", 2 * 3 * 10)])
async def test_scores_that_are_read_from_probabilities_take_few_tokens(mode, tokens):
    estimate = await estimate_groups(Judge("openai/gpt-5-mini", mode=mode, orders=2), GROUPS[:1])
    assert (estimate.calls, estimate.completion_tokens) == (2, tokens)
    assert estimate.prompt_tokens > 500
