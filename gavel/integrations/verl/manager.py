"""The judge as a reward manager of verl's reward loop, which has verl's own groups.

    reward.reward_manager.source=importlib reward.reward_manager.name=JudgeRewardManager
    reward.reward_manager.module.path=pkg://gavel.integrations.verl.manager
    +reward.reward_kwargs.judge.service=http://127.0.0.1:8080

Samples of one `uid` are a group of `rollout.n` (of `val_kwargs.n` in validation), whichever workers they are on. verl
is imported only where its own code is called.
"""

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from gavel.integrations.verl.reward import VerlJudge
from gavel.judge.errors import JudgeError
from gavel.judge.service.client import RefusalError

_VALIDATION = {"test", "val", "valid", "validation"}
"""Values of `extra_info["split"]` that mean validation."""


class JudgeRewardManager:
    """One manager per reward worker. Its options are those of `VerlJudge`, under `reward.reward_kwargs.judge`."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **_: Any) -> None:
        kwargs: Mapping[str, Any] = config.reward.get("reward_kwargs") or {}
        options: Mapping[str, Any] = kwargs.get("judge") or {}
        self._rollout = config.actor_rollout_ref.rollout
        self._tokenizer = tokenizer
        self._judge = VerlJudge(**options)

    async def run_single(self, data: Any) -> dict[str, Any]:
        """The reward of a trajectory, read from the last of its sequences.

        In validation with one sample per prompt there is nothing to compare: the reward is NaN, and no judge is called.
        """
        item = data[-1:][0]
        known: Mapping[str, Any] = item.non_tensor_batch
        info: Mapping[str, Any] = known.get("extra_info") or {}
        validates = str(info.get("split", "")).lower() in _VALIDATION
        expected = int(self._rollout.val_kwargs.n if validates else self._rollout.n)
        if validates and expected == 1:
            return _result({"score": math.nan, **_NOT_ASKED})
        if "uid" not in known or "raw_prompt" not in known:
            raise JudgeError(
                "this verl gives its reward manager no uid and raw_prompt, by which a group is known.",
                "Use verl 0.9.1 or newer, or compute_score = gavel.integrations.verl.compute_score(…).",
            )
        ids = item.batch["responses"]
        length = int(item.batch["attention_mask"][-ids.shape[-1] :].sum())  # without padding
        answer = await asyncio.to_thread(self._tokenizer.decode, ids[:length], skip_special_tokens=True)
        model: Mapping[str, Any] = known.get("reward_model") or {}
        attempt = self._judge.attempt(known["raw_prompt"], answer, model.get("ground_truth"), info)
        try:
            return _result(await self._judge.score(attempt, str(known["uid"]), expected))
        except RefusalError as refusal:
            if validates and refusal.kind == "group-full":  # verl repeats samples to fill a validation batch
                return _result({"score": math.nan, **_NOT_ASKED})
            raise

    @classmethod
    def assemble_rm_scores(cls, data: Any, scores: list[float]) -> Any:
        """verl's layout: each score at the last token of its response. `[B, T]`"""
        from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase  # pyright: ignore

        return RewardManagerBase.assemble_rm_scores(data, scores)  # pyright: ignore


_NOT_ASKED = {
    "judge_unscored": 1.0,
    "judge_score": math.nan,
    "judge_standard_error": math.nan,
    "judge_explanation": "there is nothing to compare it with",
}


def _result(found: dict[str, Any]) -> dict[str, Any]:
    return {"reward_score": found["score"], "reward_extra_info": found}
