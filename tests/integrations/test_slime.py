"""slime's custom reward function for groups. `Sample` has fields of slime's own, which has no package to install."""

import enum
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any

import pytest

from gavel.integrations._rewards import Unscored
from gavel.integrations.slime import custom_rm
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.truth import truth_of
from tests.integrations.adapters_page import run
from tests.integrations.worth_judge import WorthJudge


class Status(enum.Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """What the hook reads and writes of `slime/utils/types.py`."""

    response: str
    prompt: str | list[dict[str, str]] = "What is it worth?"
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    remove_sample: bool = False
    status: Status = Status.COMPLETED
    metadata: dict[str, Any] = field(default_factory=dict)


async def batched_async_rm(rm_function: Any, samples: list[Any]) -> list[float]:
    """How slime calls it, and what it does with the answer (`generate_and_rm_group`)."""
    rewards = await rm_function(Namespace(group_rm=True), samples)
    for sample, reward in zip(samples, rewards, strict=False):
        sample.reward = reward
    return rewards


def samples(*responses: str, **fields: Any) -> list[Sample]:
    return [Sample(response, **fields) for response in responses]


async def test_each_sample_of_a_prompt_gets_its_score_and_the_reason_for_it():
    group = samples("worth 90", "worth 20", "worth 50")
    await batched_async_rm(custom_rm(WorthJudge()), group)
    assert [sample.reward for sample in group] == [0.9, 0.2, 0.5]
    assert [sample.remove_sample for sample in group] == [False] * 3
    assert group[0].metadata["judge"]["explanation"] == "worth 90"


MISSING: list[tuple[Unscored, list[float], list[bool]]] = [
    ("member", [0.9, 0.5, 0.1], [False, True, False]),
    ("group", [0.0, 0.0, 0.0], [True, True, True]),
]


@pytest.mark.parametrize(("unscored", "rewards", "removed"), MISSING)
async def test_a_sample_without_a_score_is_masked(unscored: Unscored, rewards: list[float], removed: list[bool]):
    group = samples("worth 90", "worth 99, withheld", "worth 10")
    assert await batched_async_rm(custom_rm(WorthJudge(), unscored=unscored), group) == rewards
    assert [sample.remove_sample for sample in group] == removed
    assert group[1].metadata["judge"]["reason"] == "its votes were lost"


async def test_samples_that_are_all_alike_are_masked():
    group = samples("worth 90", "worth 90")
    assert await batched_async_rm(custom_rm(WorthJudge(), unscored="raise"), group) == [
        0.0,
        0.0,
    ]
    assert all(sample.remove_sample for sample in group)


async def test_an_aborted_sample_is_not_judged_and_costs_itself_alone():
    group = samples("worth 90", "worth", "worth 10")
    group[1].status = Status.ABORTED
    assert await batched_async_rm(custom_rm(WorthJudge()), group) == [0.9, 0.5, 0.1]
    assert [sample.remove_sample for sample in group] == [False, True, False]


async def test_a_group_that_was_aborted_whole_is_masked():
    group = samples("wor", "wo", status=Status.ABORTED)
    assert await batched_async_rm(custom_rm(WorthJudge()), group) == [0.0, 0.0]
    assert all(sample.remove_sample for sample in group)


@pytest.mark.parametrize("given", [Sample("worth 1"), [samples("worth 1", "worth 2")]])
async def test_what_is_no_group_of_samples_says_which_option_is_missing(given: Any):
    with pytest.raises(JudgeError, match="--group-rm"):
        await custom_rm(WorthJudge())(Namespace(group_rm=False), given)


async def test_the_page_s_function_judges():
    group = samples("It is 9 days old.", "")
    assert await batched_async_rm(run("slime")["reward"], group) == [1.0, 0.0]


async def test_samples_of_several_prompts_are_judged_apart():
    judge = WorthJudge()
    group = [*samples("worth 90", "worth 20", prompt="one"), *samples("worth 50", "worth 10", prompt="two")]
    assert await batched_async_rm(custom_rm(judge), group) == [0.9, 0.2, 0.5, 0.1]
    assert [len(each) for each in judge.groups] == [2, 2]


async def test_slimes_own_numbers_of_groups_go_before_prompts():
    judge = WorthJudge()
    group = samples("worth 90", "worth 20", "worth 50", "worth 10")
    for number, sample in enumerate(group):
        sample.prompt, sample.group_index = f"state {number}", number // 2  # type: ignore[attr-defined]
    await batched_async_rm(custom_rm(judge), group)
    assert [len(each) for each in judge.groups] == [2, 2]


async def test_samples_of_different_labels_are_not_compared():
    group = [*samples("worth 90", label="4"), *samples("worth 20", label="5")]
    with pytest.raises(JudgeError, match="not comparable"):
        await batched_async_rm(custom_rm(WorthJudge()), group)


@pytest.mark.parametrize("metadata", [None, {"answer": None}, {"rubric": "Be right."}])
async def test_the_label_is_the_reference_beside_what_metadata_holds(metadata: Any):
    judge = WorthJudge()
    group = samples("worth 90", "worth 20", label="4", metadata=metadata)
    await batched_async_rm(custom_rm(judge), group)
    truth = truth_of(judge.groups[0])
    assert (truth.reference, truth.rubric) == ("4", (metadata or {}).get("rubric"))
    assert [sample.metadata["judge"]["score"] for sample in group] == [0.9, 0.2]
