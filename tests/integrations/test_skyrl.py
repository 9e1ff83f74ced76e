"""SkyRL's generator with judged rewards. Inputs and outputs have the fields of skyrl 0.3.0, which needs GPUs to run."""

import copy
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from gavel.integrations._rewards import Unscored
from gavel.integrations.skyrl import get_generator
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.truth import truth_of
from tests.integrations.adapters_page import run, stand_in
from tests.integrations.released_source import definitions, executed, fields, parameters
from tests.integrations.words import END, Words
from tests.integrations.worth_judge import WorthJudge


@dataclass
class TrajectoryID:
    instance_id: str
    repetition_id: int


@dataclass
class BatchMetadata:
    global_step: int
    training_phase: str


class Generator:
    """Answers with a script; a tool's output, between slashes, is in the response and masked out of the loss."""

    def __init__(self, words: Words, *answers: str, **more: Any) -> None:
        self.words, self.answers, self.more, self.name = words, answers, more, "scripted"

    async def generate(self, input_batch: dict[str, Any]) -> dict[str, Any]:
        ids, masks = [], []
        for answer in self.answers:
            parts = [self.words.encode(part) for part in answer.split("/")]
            ids.append([token for part in parts for token in part] + [END])
            masks.append([n % 2 ^ 1 for n, part in enumerate(parts) for _ in part] + [1])
        size = len(self.answers)
        return {
            "prompt_token_ids": [[1]] * size,
            "response_ids": ids,
            "rewards": [7.0] * size,
            "loss_masks": masks,
            "stop_reasons": ["stop"] * size,
            "rollout_metrics": {"generate/n": size},
            "rollout_logprobs": None,
            **self.more,
        }


def batch(*uids: str, phase: str = "train", **more: Any) -> dict[str, Any]:
    return {
        "prompts": [[{"role": "user", "content": f"What is {uid} worth?"}] for uid in uids],
        "env_classes": ["desk"] * len(uids),
        "env_extras": None,
        "sampling_params": None,
        "trajectory_ids": [TrajectoryID(uid, number) for number, uid in enumerate(uids)],
        "batch_metadata": BatchMetadata(1, phase),
        **more,
    }


async def test_each_trajectory_gets_its_score_among_those_of_its_prompt():
    words = Words()
    judge = WorthJudge()
    inner = Generator(words, "worth 90", "worth 11", "worth 20", "worth 33")
    generator = get_generator(inner, words, judge)
    output = await generator.generate(batch("a", "b", "a", "b"))
    assert output["rewards"] == [0.9, 0.11, 0.2, 0.33]
    assert output["loss_masks"] == [[1, 1, 1]] * 4
    assert output["rollout_metrics"] == {"generate/n": 4, "judge/unscored": 0}
    assert [len(group) for group in judge.groups] == [2, 2]
    assert generator.name == "scripted"


MISSING: list[tuple[Unscored, list[float], list[int]]] = [
    ("member", [0.9, 0.5, 0.1, 0.4, 0.6], [1, 0, 1, 1, 1]),
    ("group", [0.0, 0.0, 0.0, 0.4, 0.6], [0, 0, 0, 1, 1]),
]


@pytest.mark.parametrize(("unscored", "rewards", "trained"), MISSING)
async def test_a_trajectory_without_a_score_is_masked(unscored: Unscored, rewards: list[float], trained: list[int]):
    words = Words()
    inner = Generator(words, "worth 90", "worth 99 withheld", "worth 10", "worth 40", "worth 60")
    output = await get_generator(inner, words, WorthJudge(), unscored=unscored).generate(batch(*"aaabb"))
    assert output["rewards"] == rewards
    assert [int(any(mask)) for mask in output["loss_masks"]] == trained
    assert [len(mask) for mask in output["loss_masks"]] == [len(ids) for ids in output["response_ids"]]
    assert output["rollout_metrics"]["judge/unscored"] == trained.count(0)


async def test_the_judge_sees_turns_without_special_tokens():
    words = Words()
    judge = WorthJudge()
    inner = Generator(words, "look it up /it costs 5/ worth 50", "worth 10")
    await get_generator(inner, words, judge).generate(batch("a", "a"))
    assert [(m["role"], m["content"]) for m in judge.groups[0].trajectories[0].messages()] == [
        ("user", "What is a worth?"),
        ("assistant", "look it up"),
        ("user", "it costs 5"),
        ("assistant", "worth 50"),
    ]


async def test_the_ground_truth_is_the_reference():
    words = Words()
    judge = WorthJudge()
    extras = [{"reward_spec": {"method": "rule", "ground_truth": "42"}}] * 2
    inner = Generator(words, "worth 1", "worth 2")
    await get_generator(inner, words, judge).generate(batch("a", "a", env_extras=extras))
    assert truth_of(judge.groups[0]).reference == "42"


async def test_evaluation_keeps_its_own_rewards():
    words = Words()
    output = await get_generator(Generator(words, "worth 1"), words, WorthJudge()).generate(batch("a", phase="eval"))
    assert output["rewards"] == [7.0]


@pytest.mark.parametrize(
    ("more", "changed", "remedy"),
    [
        ({"is_last_step": [True, True]}, {}, "step_wise_trajectories"),
        ({}, {"trajectory_ids": None}, "n > 1"),
    ],
)
async def test_batches_that_have_no_groups_say_so(more: dict[str, Any], changed: dict[str, Any], remedy: str):
    words = Words()
    generator = get_generator(Generator(words, "worth 1", "worth 2", **more), words, WorthJudge())
    with pytest.raises(JudgeError, match=remedy):
        await generator.generate(batch("a", "a", **changed))


async def test_the_page_s_experiment_judges(monkeypatch: pytest.MonkeyPatch):
    words = Words()

    class BasePPOExp:
        def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Any:
            return Generator(tokenizer, "It is 9 days old.", " ")

    stand_in(monkeypatch, "skyrl.train.entrypoints.main_base", BasePPOExp=BasePPOExp)
    generator = run("SkyRL")["JudgedExp"]().get_generator(None, words, None)
    assert (await generator.generate(batch("a", "a")))["rewards"] == [1.0, 0.0]


FILES = "skyrl/train/"


@pytest.mark.adapters
def test_the_release_has_the_signatures_and_fields_that_the_hook_relies_on():
    base = definitions("skyrl", f"{FILES}generators/base.py")
    assert parameters(base["GeneratorInterface.generate"]) == ["self", "input_batch"]
    assert set(batch("a")) == fields(base["GeneratorInput"])
    used = {"response_ids", "rewards", "loss_masks", "stop_reasons", "rollout_metrics", "is_last_step"}
    assert used <= fields(base["GeneratorOutput"])
    assert fields(base["TrajectoryID"]) == {"instance_id", "repetition_id"}
    assert "training_phase" in fields(base["BatchMetadata"])
    experiment = definitions("skyrl", f"{FILES}entrypoints/main_base.py")["BasePPOExp.get_generator"]
    assert parameters(experiment) == ["self", "cfg", "tokenizer", "inference_engine_client"]


@pytest.mark.adapters
@pytest.mark.parametrize("unscored", ["group", "member"])
async def test_the_release_accepts_the_output_and_a_masked_trajectory_has_no_advantage(unscored: Unscored):
    words = Words()
    inner = Generator(words, "worth 90", "worth 99 withheld", "worth 10", "worth 40", "worth 60")
    output = await get_generator(inner, words, WorthJudge(), unscored=unscored).generate(batch(*"aaabb"))
    checks = executed("skyrl", f"{FILES}utils/trainer_utils.py", "validate_generator_output", np=np, logger=None)
    checks["validate_generator_output"](5, output)

    estimators = "skyrl/backends/skyrl_train/utils/ppo_utils.py"
    scope = {"torch": torch, "np": np, "defaultdict": defaultdict}
    grpo = executed("skyrl", estimators, "compute_grpo_outcome_advantage", **scope)["compute_grpo_outcome_advantage"]
    longest = max(map(len, output["response_ids"]))
    rewards, mask = torch.zeros(5, longest), torch.zeros(5, longest)
    for row, (reward, trained) in enumerate(zip(output["rewards"], output["loss_masks"], strict=True)):
        rewards[row, len(trained) - 1], mask[row, : len(trained)] = reward, torch.tensor(trained).float()
    advantages, _ = grpo(rewards, mask, np.array(list("aaabb")), grpo_norm_by_std=False)
    expected = {"group": [0.0, 0.0, 0.0, -0.1, 0.1], "member": [0.4, 0.0, -0.4, -0.1, 0.1]}[unscored]
    assert [float(row.sum() / max(int((row != 0).sum()), 1)) for row in advantages] == pytest.approx(expected, abs=1e-6)


def test_a_judged_generator_is_copied_as_the_one_that_it_was_made_of():
    made = get_generator(Generator(Words(), "worth 1"), Words(), WorthJudge())
    assert copy.copy(made).name == "scripted"
    with pytest.raises(AttributeError):
        _ = made.missing
