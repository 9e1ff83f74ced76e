"""The reward manager at the signature of verl 0.9.1; with verl itself it runs in test_verl_package.py."""

import asyncio
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gavel.integrations.verl.manager import JudgeRewardManager
from gavel.scenarios.errors import JudgeError
from tests.integrations.conftest import JudgeService

pytestmark = pytest.mark.slow


@dataclass
class Item:
    """A `DataProtoItem`."""

    batch: dict[str, Any]
    non_tensor_batch: dict[str, Any]


class Letters:
    """A tokenizer of letters, 0 is padding."""

    def decode(self, ids: Any, skip_special_tokens: bool) -> str:
        return " ".join("?abcdefgh"[int(token)] for token in ids)


def row(uid: str, *ids: int, split: str = "train") -> list[Item]:
    """A `DataProto` of one sample: a prompt of two tokens, a response padded to four."""
    response = torch.tensor([*ids, *[0] * (4 - len(ids))])
    mask = torch.tensor([1, 1, *[1] * len(ids), *[0] * (4 - len(ids))])
    known = {
        "uid": uid,
        "data_source": "letters",
        "raw_prompt": [{"role": "user", "content": "write"}],
        "reward_model": {"style": "rule", "ground_truth": "a"},
        "extra_info": {"split": split, "index": 0},
    }
    return [Item({"responses": response, "attention_mask": mask}, known)]


@pytest.fixture
def manager(service: JudgeService) -> JudgeRewardManager:
    return made(service.url)


def made(url: str, n: int = 2, val_n: int = 1, **options: Any) -> JudgeRewardManager:
    rollout = SimpleNamespace(n=n, val_kwargs=SimpleNamespace(n=val_n))
    reward = {"reward_kwargs": {"judge": {"service": url, **options}}}
    config = SimpleNamespace(reward=reward, actor_rollout_ref=SimpleNamespace(rollout=rollout))
    return JudgeRewardManager(
        config=config, tokenizer=Letters(), compute_score=None, reward_router_address=None, reward_model_tokenizer=None
    )


async def test_samples_of_one_uid_are_a_group(manager: JudgeRewardManager):
    rows = [row("u1", 1, 2), row("u2", 2), row("u1", 1), row("u2", 1, 3, 4, 5)]
    results = await asyncio.gather(*map(manager.run_single, rows))
    assert [result["reward_score"] for result in results] == [0.5, 0.0, 1.0, 0.25]
    assert {tuple(result["reward_extra_info"]) for result in results} == {
        ("score", "judge_unscored", "judge_score", "judge_standard_error", "judge_explanation")
    }


async def test_one_sample_in_validation_is_not_a_number_and_asks_no_judge(
    manager: JudgeRewardManager, service: JudgeService
):
    result = await manager.run_single(row("u1", 1, split="test"))
    assert math.isnan(result["reward_score"])
    assert result["reward_extra_info"]["judge_unscored"] == 1.0
    assert service.endpoint.requests == []


async def test_a_sample_that_verl_repeats_to_fill_a_batch_of_validation_is_not_a_number(
    service: JudgeService,
):
    manager = made(service.url, val_n=2)
    rows = [row("u3", *ids, split="test") for ids in ((1, 2), (1,), (2,))]
    rewards = [result["reward_score"] for result in await asyncio.gather(*map(manager.run_single, rows))]
    assert sum(map(math.isnan, rewards)) == 1


async def test_a_verl_that_tells_no_uid_is_named_with_what_to_do(manager: JudgeRewardManager):
    (item,) = row("u1", 1)
    del item.non_tensor_batch["uid"]
    with pytest.raises(JudgeError, match=r"gavel\.rewards\.verl"):
        await manager.run_single([item])


async def test_a_sample_that_comes_too_late_has_the_reward_of_its_group_which_was_not_judged(service: JudgeService):
    manager = made(service.url, unscored="group", deadline=0.5)
    early = await manager.run_single(row("u4", 1))
    late = await manager.run_single(row("u4", 2))
    assert early["reward_score"] == late["reward_score"] == 0.5
    assert late["reward_extra_info"]["judge_unscored"] == 1.0
    assert service.endpoint.requests == []
    with pytest.raises(JudgeError):
        await made(service.url, deadline=0.5).run_single(row("u5", 1))
