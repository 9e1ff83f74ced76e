"""Text generation as a Gymnasium environment, one token per action, and as a scenario for training with PPO.

An episode ends with the tokenizer's EOS where `terminate_on_eos`, or after `max_episode_length` tokens. In Gymnasium's
terms the first is `terminated` and the second `truncated`; RL4LMs' `done` is either.

As a scenario, the policy continues a prompt as it stands, without a chat template. The environment replays the sampled
tokens, so a reward function sees every state. Rewards before the end are kept as `token_rewards` of the choice, on
which PPO's value head trains token by token; the return is the trajectory's reward, so that losses which compare a
group's members can be used, too.
"""

import asyncio
import copy
import functools
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from openai import omit
from openai.types.chat.chat_completion import Choice

from gavel.base.errors import GavelError
from gavel.integrations.rl4lms.texts import (
    AnyReward,
    Ids,
    Observation,
    PrioritySampler,
    Sample,
    TextMetric,
    imported,
    reward_of,
)
from gavel.scenarios.chat_model import ChatModel
from gavel.scenarios.episode import Episode
from gavel.scenarios.scenario import Scenario, Split
from gavel.scenarios.task import Task
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.config import Ppo, TrainConfig

imported("gymnasium")  # the next imports would fail without a clear message
import gymnasium  # noqa: E402
from gymnasium import spaces  # noqa: E402

_NO_LIMIT = 10**6
"""Min length that tokenizers use to mean that there is no limit."""


class TextGenEnv(gymnasium.Env[dict[str, Ids], int]):
    """Generates the text of a sample, token by token."""

    def __init__(
        self,
        tokenizer: Any,
        reward_function: AnyReward | None,
        samples: Iterable[tuple[Sample, float]],
        max_episode_length: int = 512,
        priority_scale: float = 0.0,
        max_prompt_length: int | None = None,
        terminate_on_eos: bool = False,
        context_start_token: int | None = None,
        prompt_truncation_side: str = "left",
    ) -> None:
        """`tokenizer`: of transformers; a copy pads on the left, with EOS where it has no token for padding. `samples`:
        with their weights. `max_prompt_length`: tokens; default the tokenizer's `model_max_length`.
        `context_start_token`: of encoder-decoders. Without a `reward_function` rewards are 0. Raises `GavelError` for
        lengths that are none.
        """
        longest = max_prompt_length or tokenizer.model_max_length
        if longest > _NO_LIMIT:
            raise GavelError(
                "the tokenizer has no model_max_length, so prompts cannot be padded.",
                "Pass max_prompt_length, such as 64.",
            )
        if max_episode_length < 1 or longest < 1 or prompt_truncation_side not in ("left", "right"):
            told = f"max_episode_length={max_episode_length}, max_prompt_length={longest}, "
            told += f"prompt_truncation_side={prompt_truncation_side!r} are no settings."
            raise GavelError(told, "Use lengths from 1, and left or right.")
        self.tokenizer: Any = copy.deepcopy(tokenizer)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.tokenizer.padding_side = self.tokenizer.truncation_side = "left"
        self.reward_function = reward_function
        self.max_steps, self.max_prompt_length = max_episode_length, longest
        self._terminate_on_eos = terminate_on_eos
        self._starts = prompt_truncation_side, context_start_token
        self.sampler_for_replaying = PrioritySampler[Sample](priority_scale)
        for sample, weight in samples:
            self.sampler_for_replaying.add(sample, weight)
        size = len(self.tokenizer)  # including added tokens
        self.action_space = spaces.Discrete(size)  # pyright: ignore[reportAttributeAccessIssue]
        lengths = {"prompt_or_input": longest, "context": max_episode_length, "input": longest + max_episode_length}
        self.observation_space = spaces.Dict(  # pyright: ignore[reportAttributeAccessIssue]
            {
                f"{name}_{kind}_pt": spaces.Box(0, high, (length,), np.int64)
                for name, length in lengths.items()
                for kind, high in (("encoded", size), ("attention_mask", 1))
            }
        )
        self._chooser = random.Random()
        self._observation: Observation | None = None
        self._steps = 0

    def add_sample(self, sample: Sample, weight: float = 1.0) -> None:
        self.sampler_for_replaying.add(sample, weight)

    def reset(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, sample: Sample | None = None, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Ids], dict[str, Any]]:
        """Starts with `sample` (or `options["sample"]`), else with one drawn by weight."""
        super().reset(seed=seed)
        if seed is not None:
            self._chooser = random.Random(seed)
        sample = sample or (options or {}).get("sample")
        if sample is None:
            (sample,) = self.sampler_for_replaying.sample(1, self._chooser)
        self._steps = 0
        first = self._observation = Observation.init_from_sample(
            sample, self.tokenizer, self.max_prompt_length, self.max_steps, *self._starts, sample.meta_data
        )
        return first.to_dict(), self._info(first, first)

    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, action: int, *, last: bool = False
    ) -> tuple[dict[str, Ids], float, bool, bool, dict[str, Any]]:
        """Appends a token. `last`: its sampler stopped there, so the episode is terminated whatever the token is.

        Raises `GavelError` for an invalid token, and for a step outside of an episode.
        """
        before = self._observation
        if before is None:
            raise GavelError("the episode is over, or has not begun.", "Call reset() first.")
        if not 0 <= int(action) < int(self.action_space.n):  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
            raise GavelError(f"{action!r} is no token of the vocabulary.", f"Choose from {self.action_space}.")
        self._steps += 1
        after = before.update(action, self.tokenizer)
        terminated = last or (self._terminate_on_eos and int(action) == self.tokenizer.eos_token_id)
        truncated = not terminated and self._steps == self.max_steps
        done, function = terminated or truncated, self.reward_function
        reward = 0.0 if function is None else reward_of(function, before, int(action), after, done)
        self._observation = None if done else after
        return after.to_dict(), reward, terminated, truncated, self._info(before, after)

    @staticmethod
    def _info(before: Observation, after: Observation) -> dict[str, Any]:
        return {
            "output": after.context_text,
            "action_history": after.action_history,
            "reference_text": after.target_or_reference_texts,
            "prompt_text": after.prompt_or_input_text,
            "prev_output": before.context_text,
            "meta_info": before.meta_info,
        }


RETURN = "return"
"""Trajectory metric: the undiscounted sum of its rewards."""


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
        max_prompt_length=max_prompt_length,
        terminate_on_eos=terminate_on_eos,
        prompt_truncation_side=prompt_truncation_side,
    )
    make_env()  # fail early

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
        ids: list[int] | None = extra.get("token_ids")
        if ids is None:
            ids = cast("list[int]", env.tokenizer.encode(completion.text, add_special_tokens=False))
        rewards, text = await asyncio.to_thread(_play, env, sample, ids)
        fields = {"index": 0, "finish_reason": completion.finish_reason or "stop", "token_rewards": rewards}
        message = {"role": "assistant", "content": completion.text}
        choice = Choice.model_validate({**extra, **fields, "message": message})
        trajectory = Trajectory(messages_and_choices=[{"role": "user", "content": sample.prompt_or_input_text}, choice])
        trajectory.metrics = {RETURN: sum(rewards), "tokens": len(ids)}
        trajectory.policy_version = extra.get("policy_version")
        for metric in metrics:
            found = metric.compute([sample.prompt_or_input_text], [text], [sample.references], [sample.meta_data])
            trajectory.metrics |= {name: whole if each is None else each[0] for name, (each, whole) in found.items()}
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
    """PPO with RL4LMs' settings: clipped at 0.2, GAE with gamma 1 and lambda 0.95, five epochs, the KL divergence from
    the base in the reward (coefficient 0.1) by token. `settings` of `TrainConfig` override them."""
    return TrainConfig.model_validate({"loss": Ppo(), "epochs": 5, "kl_in_reward": 0.1, **settings})


class _TextScenario(Scenario):
    """A scenario that draws a step's tasks by weight."""

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
    """The prompt as the environment shows it: truncated to its last (or first) tokens."""
    ids: list[int] = env.tokenizer.encode(prompt, add_special_tokens=False)
    most = env.max_prompt_length
    if len(ids) <= most:
        return prompt
    return env.tokenizer.decode(ids[-most:] if side == "left" else ids[:most], skip_special_tokens=True)


def _play(env: TextGenEnv, sample: Sample, ids: Sequence[int]) -> tuple[list[float], str]:
    """The reward of each token, 0 after the episode's end, and the text."""
    env.reset(sample)
    rewards, text = [0.0] * len(ids), ""
    for at, token in enumerate(ids):
        _, rewards[at], terminated, truncated, info = env.step(token, last=at == len(ids) - 1)
        text = info["output"]
        if terminated or truncated:
            break
    return rewards, text
