"""What a run is pinned to: a run goes on only as the experiment that it was begun as."""

import json
import os
from collections.abc import Mapping
from typing import Any

from gavel.judge.judge import Judge
from gavel.judge.rubric import Rubric
from gavel.prompts import content_hash
from gavel.scenarios.mixture import Mixture
from gavel.trainer.config import TrainConfig

_CHANGEABLE = {"total_steps", "warmup_steps", "micro_batch_tokens", "gradient_checkpointing", "restart"}


def judges_of(mixture: Mixture, judge: Judge | None) -> dict[str, Judge]:
    """The judge of each scenario, by name: one without a rubric of its own takes the scenarios'."""
    if judge is None:
        return {}
    if len(mixture) == 1 or judge.rubric != Rubric.of(None):
        return {scenario.name: judge for scenario in mixture}
    return {each.name: judge if each.rubric is None else judge.with_rubric(each.rubric) for each in mixture}


def described_experiment(mixture: Mixture, judge: Judge | None) -> dict[str, Any]:
    """Of scenarios and judge."""
    experiment: dict[str, Any] = {"scenario": mixture.name}
    if len(mixture) > 1:
        experiment["mixture"] = mixture.dump()
    if judge is None:
        return experiment
    experiment |= {
        "judge": judge.names,
        "rubric": judge.rubric.dump(),
        "orders": judge.orders,
        "mode": judge.mode,
        "anchors": sorted(anchor.id for anchor in judge.anchors),
    }
    if len(mixture) > 1:
        experiment["rubrics"] = {name: each.rubric.dump() for name, each in judges_of(mixture, judge).items()}
    truths = [(task.id, task.truth.dump()) for task in mixture.tasks() if task.truth]
    if truths:
        experiment["truths"] = content_hash(json.dumps(truths, ensure_ascii=False))
    if judge.noise_prior is not None:
        experiment["noise_prior"] = judge.noise_prior.model_dump()
    return experiment


def described_training(config: TrainConfig) -> Mapping[str, Any]:
    """The settings of the learner that may not change."""
    training = config.model_dump(mode="json", exclude=_CHANGEABLE)
    if config.reference_path is not None:
        training["reference"] = os.path.abspath(config.reference_path)  # wherever the command is typed
    return training
