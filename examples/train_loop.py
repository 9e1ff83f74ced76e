"""What `await model.train(…)` does, over the trainer's own parts: sampler, batch, learner, publication.

A step: roll out groups of attempts, let the judge score them, turn the scores into advantages, make one batch of the
sampled tokens, take the gradient of its loss, update the LoRA adapter, publish it to the sampler. Read it beside
`LocalBackend.train` -> `TrainingRun.train` -> `Learner.step`, which are the same calls.

Left out: checkpoints and going on from them, metrics on disk, trackers, several processes, fitting a pass to the
device's memory, vLLM, retries, evaluation against a base, and the watch over judge and run. About a minute:

    python examples/train_loop.py
    python examples/train_loop.py 2     # two steps only
"""

import asyncio
import statistics
import sys

import torch

import gavel
from gavel.trainer.data.training_batch import make_batch
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.learner.learner import Learner
from gavel.trainer.policy.policy import Policy
from gavel.trainer.serving.openai_server import EndpointServer

STEPS = 12
TASKS_PER_STEP = 16
GROUP_SIZE = 8
MAX_CONTEXT = 2048
SCENARIO = gavel.find_scenario("returns_desk")
JUDGE = gavel.Judge("stand-in", rubric=SCENARIO.rubric)
CONFIG = gavel.TrainConfig(learning_rate=2e-3, warmup_steps=2, advantage="mean", loss=gavel.ClippedSurrogate())


class Parts:
    """A policy that learns, and an engine that samples from it behind an OpenAI-compatible address."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.policy = Policy(EMBEDDED_POLICY, gavel.LoraSettings(rank=16))
        """The base model and its adapter; the tokenizer; the renderer of the chat template."""
        self.learner = Learner(self.policy)
        """AdamW over the adapter's weights."""
        self.engine = TransformersEngine(self.policy.plain_model(), slots=128, max_context=MAX_CONTEXT)
        """Samples with the newest published adapter; its base shares the storage of the learner's."""
        self.engine.publish(self.policy, 0)
        self.server = EndpointServer(self.engine, self.policy, model="loop")
        """Each choice that it returns holds its token ids and log-probs, so nothing is tokenised again."""
        self.model = gavel.Model(
            name="loop", project="examples", inference_base_url=self.server.base_url, inference_api_key="none"
        )

    def close(self) -> None:
        self.server.close()
        self.engine.close()


async def roll_out(model: gavel.Model, step: int) -> list[gavel.TrajectoryGroup]:
    """Groups of attempts at the step's tasks, each scored by the judge as soon as its members are done."""
    tasks = SCENARIO.sample("train", TASKS_PER_STEP, seed=0, step=step)
    seeds = iter(range(step * 1_000_000, (step + 1) * 1_000_000, 100))
    return await gavel.gather_trajectory_groups(
        (
            gavel.TrajectoryGroup(
                gavel.rollout(model, SCENARIO, task, seed=next(seeds), max_tokens=64) for _ in range(GROUP_SIZE)
            )
            for task in tasks
        ),
        after_each=JUDGE.score,
        progress=False,
    )


def train(parts: Parts, groups: list[gavel.TrajectoryGroup], step: int) -> dict[str, float]:
    """One update. Its adapter is live in the sampler when this returns."""
    # [members] of scores become [members] of advantages, and each trajectory the sequences of tokens that were sampled,
    # with a mask of the policy's own tokens. A group of equal scores teaches nothing and is left out.
    batch = make_batch(groups, CONFIG, parts.policy)
    if not batch.sequences:
        return {}  # `batch.why_empty()` says why
    # logprobs [T] -> ratio to the sampler's [T] -> clipped surrogate, averaged over all T trained tokens -> AdamW
    # `logprob_drift`, the mean |learner - sampler|, is rounding while both have the same adapter.
    metrics = parts.learner.step(batch, CONFIG)
    parts.engine.publish(parts.policy, step)
    return metrics


async def main(steps: int) -> None:
    parts = Parts()
    try:
        for step in range(1, steps + 1):
            groups = await roll_out(parts.model, step - 1)
            metrics = train(parts, groups, step)
            scores = [trajectory.reward for group in groups for trajectory in group if trajectory.reward is not None]
            print(
                f"step {step:2}: mean score {statistics.fmean(scores):.2f}, "
                f"gradient norm {metrics.get('gradient_norm', 0):.2f}, "
                f"log-probs of sampler and learner differ by {metrics.get('logprob_drift', 0):.0e} nats"
            )
    finally:
        parts.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else STEPS))
