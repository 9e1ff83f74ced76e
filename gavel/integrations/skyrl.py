"""SkyRL: a generator whose trajectories of one prompt are judged against each other.

    class JudgedExp(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            generator = super().get_generator(cfg, tokenizer, inference_engine_client)
            return gavel.integrations.skyrl.get_generator(generator, tokenizer, "openai/gpt-5-mini", rubric="…")

Written against `GeneratorInterface.generate` of skyrl 0.3.0, whose trainers read the rewards and loss masks that it
returns. A masked trajectory has a number, too: the mean of the others, which leaves the group's baseline where it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gavel.integrations._rewards import JudgeLike, Scorer, Unscored, by_member, groups_of, member, truth_metadata, turns
from gavel.judge.errors import JudgeError
from gavel.judge.rubric import Rubric
from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory


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


@dataclass(frozen=True, eq=False)
class JudgedGenerator:
    """A wrapped SkyRL generator; only `generate` differs."""

    _generator: Any
    _tokenizer: Any
    _scorer: Scorer

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
        if output.get("is_last_step") is not None or len(output["response_ids"]) != len(input_batch["prompts"]):
            raise JudgeError(
                "the generator gave several sequences for a trajectory.", "Set generator.step_wise_trajectories=false."
            )
        if input_batch.get("trajectory_ids") is None:
            raise JudgeError(
                "the batch has no trajectory ids, which say what belongs to one prompt.", "Train with n > 1."
            )
        groups = groups_of(identity.instance_id for identity in input_batch["trajectory_ids"])
        asked = [TrajectoryGroup(self._member(input_batch, output, index) for index in group) for group in groups]
        scored = by_member(groups, await self._scorer.score_all(asked))
        masks = [
            list(mask) if one.reward is not None else [0] * len(mask)
            for mask, one in zip(output["loss_masks"], scored, strict=True)
        ]
        unscored = sum(one.reward is None for one in scored)
        metrics: dict[str, Any] = {**(output.get("rollout_metrics") or {}), "judge/unscored": unscored}
        return {**output, "rewards": [one.number for one in scored], "loss_masks": masks, "rollout_metrics": metrics}

    def _member(self, batch: Mapping[str, Any], output: Mapping[str, Any], index: int) -> Trajectory:
        said = turns(self._tokenizer, output["response_ids"][index], output["loss_masks"][index])
        reasons, extras = output.get("stop_reasons"), batch.get("env_extras")
        own: Message = (extras and extras[index]) or {}
        spec: Message = own.get("reward_spec") or {}
        return member(
            list(batch["prompts"][index]),
            said,
            status="truncated" if reasons and reasons[index] == "length" else "finished",
            metadata=truth_metadata(own, spec.get("ground_truth")),
        )
