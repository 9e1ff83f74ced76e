"""RL4LMs' text generation as a scenario: the policy continues a prompt as it stands, without a chat template.

The environment is played over the tokens that were sampled, so a reward function sees every state. What it pays before
the end is kept as `token_rewards` of the choice, which PPO's value head trains on token by token; the return is the
trajectory's reward, so that losses which compare a group's members can be used, too.
"""

import asyncio
import functools
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openai import omit
from openai.types.chat.chat_completion import Choice

from gavel.base.errors import GavelError
from gavel.compat.rl4lms.environment import TextGenEnv
from gavel.compat.rl4lms.metrics import TextMetric
from gavel.compat.rl4lms.rewards import AnyReward
from gavel.compat.rl4lms.samples import PrioritySampler, Sample
from gavel.scenarios.chat_model import ChatModel
from gavel.scenarios.episode import Episode
from gavel.scenarios.scenario import Scenario, Split
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import Ppo, TrainConfig

RETURN = "return"
"""Metric of a trajectory: the sum of its rewards, undiscounted."""


def text_scenario(
    name: str,
    tokenizer: Any,
    reward_function: AnyReward,
    samples: Iterable[tuple[Sample, float] | Sample],
    *,
    max_episode_length: int = 512,
    max_prompt_length: int | None = None,
    terminate_on_eos: bool = True,
    prompt_truncation_side: str = "left",
    priority_scale: float = 0.0,
    held_out: Sequence[Sample] | float = 0.2,
    metrics: Sequence[TextMetric] = (),
) -> Scenario:
    """A scenario whose hand reward is the return of `reward_function`, for `LoopConfig(reward={"hand": 1.0})`.

    `tokenizer`: the policy's. Tasks of a step are drawn by weight ** `priority_scale`. Sampling ends at the policy's
    EOS also where `terminate_on_eos` is false: the last token is then the end of the episode. `metrics` are measured on
    every text by itself. Raises `GavelError` for two samples of one id, and for no samples.
    """
    weighted = [each if isinstance(each, tuple) else (each, 1.0) for each in samples]
    further = [] if isinstance(held_out, int | float) else list(held_out)
    by_id = {sample.id: sample for sample in [*(sample for sample, _ in weighted), *further]}
    if len(by_id) < len(weighted) + len(further) or not weighted:
        raise GavelError(
            f"{len(weighted) + len(further)} samples have {len(by_id)} ids.", "Give every sample an id of its own."
        )
    make_env = functools.partial(
        TextGenEnv,
        tokenizer,
        reward_function,
        [],
        max_episode_length,
        0.0,
        max_prompt_length,
        terminate_on_eos,
        None,
        prompt_truncation_side,
    )
    make_env()  # a mistake is told now

    async def generate(model: ChatModel, task: Task, episode: Episode) -> Trajectory:
        env, sample = make_env(), by_id[task.id]
        prompt = _cut(env, sample.prompt_or_input_text, prompt_truncation_side)
        reply = await model.openai_client().completions.create(
            model=model.get_inference_name(),
            prompt=prompt,
            max_tokens=min(max_episode_length, episode.max_tokens or max_episode_length),
            temperature=episode.temperature,
            seed=omit if episode.seed is None else episode.seed,
        )
        (completion,) = reply.choices
        extra: dict[str, Any] = completion.model_extra or {}
        known: list[int] | None = extra.get("token_ids")
        ids: list[int] = env.tokenizer.encode(completion.text, add_special_tokens=False) if known is None else known
        rewards, text = await asyncio.to_thread(_played, env, sample, ids)
        choice = Choice.model_validate(
            {
                **extra,
                "index": 0,
                "finish_reason": completion.finish_reason or "stop",
                "message": {"role": "assistant", "content": completion.text},
                "token_rewards": rewards,
            }
        )
        trajectory = Trajectory(messages_and_choices=[{"role": "user", "content": sample.prompt_or_input_text}, choice])
        trajectory.metrics = {RETURN: sum(rewards), "tokens": len(ids)}
        trajectory.policy_version = extra.get("policy_version")
        for metric in metrics:
            found = metric.compute([sample.prompt_or_input_text], [text], [sample.references], [sample.meta_data])
            trajectory.metrics |= {
                measure: whole if each is None else each[0] for measure, (each, whole) in found.items()
            }
        return trajectory

    return _TextScenario(
        name,
        rollout=generate,
        tasks=[_task(sample) for sample, _ in weighted],
        held_out=held_out if isinstance(held_out, int | float) else [_task(sample) for sample in held_out],
        hand_reward=_return_of,
        weights={sample.id: weight for sample, weight in weighted},
        priority_scale=priority_scale,
    )


def ppo(**settings: Any) -> TrainConfig:
    """PPO as RL4LMs trains: clipped at 0.2, GAE with gamma 1 and lambda 0.95, five epochs, the KL divergence from the
    base in the reward (coefficient 0.1) by token. `settings` of `TrainConfig` win."""
    return TrainConfig.model_validate({"loss": Ppo(), "epochs": 5, "kl_in_reward": 0.1, **settings})


class _TextScenario(Scenario):
    """Draws the tasks of a step by their weights."""

    def __init__(self, name: str, *, weights: Mapping[str, float], priority_scale: float, **arguments: Any) -> None:
        super().__init__(name, **arguments)
        self._weights, self._scale = weights, priority_scale

    def sample(self, split: Split, count: int, *, seed: int, step: int = 0) -> list[Task]:
        if not self._scale or split != "train":
            return super().sample(split, count, seed=seed, step=step)
        sampler = PrioritySampler[Task](self._scale)
        for task in self.tasks("train"):
            sampler.add(task, self._weights[task.id])
        return sampler.sample(count, random.Random(f"{self.name}/{split}/{seed}/{step}"))


def _return_of(trajectory: Trajectory) -> float:
    return float(trajectory.metrics[RETURN])


def _task(sample: Sample) -> Task:
    return Task(id=sample.id, user=sample.prompt_or_input_text, reference="\n".join(sample.references) or None)


def _cut(env: TextGenEnv, prompt: str, side: str) -> str:
    """The prompt as the environment shows it: its last (or first) tokens where it is too long."""
    ids: list[int] = env.tokenizer.encode(prompt, add_special_tokens=False)
    most = env.max_prompt_length
    if len(ids) <= most:
        return prompt
    return env.tokenizer.decode(ids[-most:] if side == "left" else ids[:most], skip_special_tokens=True)


def _played(env: TextGenEnv, sample: Sample, ids: Sequence[int]) -> tuple[list[float], str]:
    """The reward of each token, and the text."""
    env.reset(sample)
    rewards: list[float] = []
    text = ""
    for at, token in enumerate(ids):
        _, reward, terminated, truncated, info = env.step(token, last=at == len(ids) - 1)
        rewards.append(reward)
        text = info["output"]
        if terminated or truncated:
            break
    return rewards + [0.0] * (len(ids) - len(rewards)), text
