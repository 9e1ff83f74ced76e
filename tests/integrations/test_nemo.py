"""NeMo RL's environment step. Message logs are as `calculate_rewards` gives them; the package needs GPUs to run."""

from typing import Any, NamedTuple

import pytest
import torch

from gavel.integrations import nemo
from gavel.integrations._rewards import Unscored
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.truth import truth_of
from tests.integrations.adapters_page import run, stand_in
from tests.integrations.worth_judge import WorthJudge


def log(prompt: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def step(hook: Any, *logs: Any, metadata: Any = None) -> list[float]:
    """What NeMo RL reads of a step."""
    observations, kept, stops, rewards, terminateds, answers = hook(list(logs), metadata or [None] * len(logs))
    assert isinstance(rewards, torch.Tensor)
    assert isinstance(terminateds, torch.Tensor)
    assert terminateds.dtype == torch.bool
    assert terminateds.all()
    assert len(observations) == len(kept) == len(stops) == len(answers) == len(rewards) == len(logs)
    assert {observation["role"] for observation in observations} == {"environment"}
    return [round(float(reward), 6) for reward in rewards]


def test_samples_are_judged_within_their_prompt_whatever_their_order():
    judge = WorthJudge()
    hook = nemo.step(judge, group_size=2)
    assert step(hook, log("a", "worth 90"), log("b", "worth 11"), log("a", "worth 20"), log("b", "worth 33")) == [
        0.9,
        0.11,
        0.2,
        0.33,
    ]
    assert [len(group) for group in judge.groups] == [2, 2]


CASES: list[tuple[Unscored, list[float]]] = [("member", [0.9, 0.5, 0.1]), ("group", [0.0, 0.0, 0.0])]


@pytest.mark.parametrize(("unscored", "rewards"), CASES)
def test_a_sample_without_a_score_has_no_advantage(unscored: Unscored, rewards: list[float]):
    hook = nemo.step(WorthJudge(), group_size=3, unscored=unscored)
    assert step(hook, log("a", "worth 90"), log("a", "worth 77 withheld"), log("a", "worth 10")) == rewards


def test_less_than_a_group_says_what_to_do():
    with pytest.raises(JudgeError, match="num_generations_per_prompt"):
        step(nemo.step(WorthJudge(), group_size=2), log("a", "worth 90"))


def test_the_environment_s_turns_are_shown_and_the_ground_truth_is_the_reference():
    judge = WorthJudge()
    long = [
        *log("a", "look"),
        {"role": "environment", "content": "it costs 5"},
        {"role": "assistant", "content": "worth 5"},
    ]
    step(
        nemo.step(judge, group_size=2),
        long,
        log("a", "worth 1"),
        metadata=[{"ground_truth": "42"}] * 2,
    )
    roles = [message["role"] for message in judge.groups[0].trajectories[0].messages()]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert truth_of(judge.groups[0]).reference == "42"


class EnvironmentReturn(NamedTuple):
    """The fields of NeMo RL's, in its order."""

    observations: list[dict[str, str]]
    metadata: list[Any]
    next_stop_strings: list[None]
    rewards: torch.Tensor
    terminateds: torch.Tensor
    answers: list[str | None] | None = None


def test_the_page_s_environment_judges(monkeypatch: pytest.MonkeyPatch):
    stand_in(monkeypatch, "ray", remote=lambda kind: kind)
    parts = {"EnvironmentInterface": object, "EnvironmentReturn": EnvironmentReturn}
    stand_in(monkeypatch, "nemo_rl.environments.interfaces", **parts)
    environment = run("NeMo RL")["JudgeEnvironment"]({"group_size": 2})
    done = environment.step([log("a", "It is 9 days old."), log("a", "")], [None, None])
    assert done.rewards.tolist() == [1.0, 0.0]
    assert done.answers == ["It is 9 days old.", ""]
    assert environment.global_post_process_and_metrics("batch") == ("batch", {})


def test_a_prompt_with_two_truths_is_two_groups_whatever_their_order():
    judge = WorthJudge()
    logs = [log("a", f"worth {number}0") for number in range(1, 5)]
    truths = [{"ground_truth": truth, "answer": None} for truth in "xyxy"]
    assert step(nemo.step(judge, group_size=2), *logs, metadata=truths) == [0.1, 0.2, 0.3, 0.4]
    assert [truth_of(group).reference for group in judge.groups] == ["x", "y"]
