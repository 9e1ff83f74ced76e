"""SkyRL: a generator whose trajectories of one prompt are judged against each other.

    class JudgedExp(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            generator = super().get_generator(cfg, tokenizer, inference_engine_client)
            return gavel.integrations.skyrl.get_generator(generator, tokenizer, "openai/gpt-5-mini", rubric="…")

Written against `GeneratorInterface.generate` of skyrl 0.3.0, whose trainers read the rewards and loss masks that it
returns. A masked trajectory has a number, too: the mean of the others, which leaves the group's baseline where it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gavel.integrations._rewards import JudgeLike, Scorer, Unscored, by_member, groups_of, member, truth_metadata, turns
from gavel.judge.errors import JudgeError
from gavel.judge.rubric import Rubric
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup


def get_generator(
    generator: Any,
    tokenizer: Any,
    judge: JudgeLike | None = None,
    *,
    rubric: Rubric | str | None = None,
    unscored: Unscored = "group",
) -> "JudgedGenerator":
    """Wraps the generator: the judge's scores are the rewards of training batches; evaluation keeps its own.

    `judge`: a model, a judge or a service's address (see `Scorer`). A prompt's `env_extras` may hold a `rubric`, a
    `reference` or `answer` (or `reward_spec.ground_truth`), and `criteria`. `unscored`: "group" zeroes the loss masks
    of all trajectories of a prompt when one of them has no score, "member" that one's alone, "raise" ends the run.
    Trajectories that are all alike are masked, too.
    """
    return JudgedGenerator(generator, tokenizer, Scorer(judge, rubric, unscored))


__all__ = ["get_generator"]


class JudgedGenerator:
    """A wrapped SkyRL generator; only `generate` differs."""

    def __init__(self, generator: Any, tokenizer: Any, scorer: Scorer) -> None:
        self._generator = generator
        self._tokenizer = tokenizer
        self._scorer = scorer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # lookups on an uninitialized object (copies, pickles)
            raise AttributeError(name)
        return getattr(self._generator, name)

    async def generate(self, input_batch: Mapping[str, Any]) -> dict[str, Any]:
        """The output in the order of the batch. Raises `JudgeError` if the judge cannot be called."""
        output = await self._generator.generate(input_batch)
        batch = input_batch.get("batch_metadata")
        if batch is not None and batch.training_phase == "eval":
            return output
        groups = _groups(input_batch, output)
        asked = [self._make_group(input_batch, output, indices) for indices in groups]
        scored = by_member(groups, await self._scorer.score_all(asked))
        masks = [
            list(mask) if one.reward is not None else [0] * len(mask)
            for mask, one in zip(output["loss_masks"], scored, strict=True)
        ]
        unscored = sum(one.reward is None for one in scored)
        rewards = [one.number for one in scored]
        metrics: dict[str, Any] = {**(output.get("rollout_metrics") or {}), "judge/unscored": unscored}
        return {**output, "rewards": rewards, "loss_masks": masks, "rollout_metrics": metrics}

    def _make_group(
        self, batch: Mapping[str, Any], output: Mapping[str, Any], indices: Sequence[int]
    ) -> TrajectoryGroup:
        def said(index: int) -> list[Message]:
            return turns(self._tokenizer, output["response_ids"][index], output["loss_masks"][index])

        reasons = output.get("stop_reasons") or ["stop"] * len(output["response_ids"])
        members = [
            member(
                list(batch["prompts"][index]),
                said(index),
                status="truncated" if reasons[index] == "length" else "finished",
                metadata=_truth(batch["env_extras"][index]) if batch.get("env_extras") else {},
            )
            for index in indices
        ]
        return TrajectoryGroup(members)


def _truth(extras: Message | None) -> dict[str, Any]:
    extras = extras or {}
    spec: Message = extras.get("reward_spec") or {}
    return truth_metadata(extras, spec.get("ground_truth"))


def _groups(batch: Mapping[str, Any], output: Mapping[str, Any]) -> list[list[int]]:
    """Indices of the trajectories of each prompt."""
    if output.get("is_last_step") is not None or len(output["response_ids"]) != len(batch["prompts"]):
        raise JudgeError(
            "the generator gave several sequences for a trajectory.", "Set generator.step_wise_trajectories=false."
        )
    if batch.get("trajectory_ids") is None:
        raise JudgeError("the batch has no trajectory ids, which say what belongs to one prompt.", "Train with n > 1.")
    return groups_of(identity.instance_id for identity in batch["trajectory_ids"])
