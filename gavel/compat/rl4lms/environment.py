"""Text generation as a Gymnasium environment: one token an action.

An episode ends with the tokenizer's EOS where `terminate_on_eos`, or after `max_episode_length` tokens. In Gymnasium's
terms the first is `terminated` and the second `truncated`; RL4LMs' `done` is either.
"""

import copy
import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gavel.base.errors import GavelError
from gavel.compat.rl4lms.libraries import imported
from gavel.compat.rl4lms.observation import Ids, Observation
from gavel.compat.rl4lms.rewards import AnyReward, reward_of
from gavel.compat.rl4lms.samples import PrioritySampler, Sample

imported("gymnasium")  # which the next lines could not say in a sentence
import gymnasium  # noqa: E402
from gymnasium import spaces  # noqa: E402

_NO_LIMIT = 10**6
"""Lengths of tokenizers that mean that there is none."""


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
        vocabulary: int | None = None,
    ) -> None:
        """`tokenizer`: of transformers; a copy pads on the left, with EOS where it has no token for padding. `samples`:
        with their weights. `max_prompt_length`: tokens; default the tokenizer's `model_max_length`.
        `context_start_token`: of encoder-decoders. `vocabulary`: actions; default the tokenizer's, added tokens among
        them. Without a `reward_function` rewards are 0. Raises `GavelError` for lengths that are none.
        """
        longest = max_prompt_length or tokenizer.model_max_length
        if longest > _NO_LIMIT:
            raise GavelError(
                "the tokenizer has no model_max_length, so prompts cannot be padded.",
                "Pass max_prompt_length, such as 64.",
            )
        if max_episode_length < 1 or longest < 1 or prompt_truncation_side not in ("left", "right"):
            raise GavelError(
                f"max_episode_length={max_episode_length}, max_prompt_length={longest}, "
                f"prompt_truncation_side={prompt_truncation_side!r} are no settings.",
                "Use lengths from 1, and left or right.",
            )
        self.tokenizer: Any = copy.deepcopy(tokenizer)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.tokenizer.padding_side = self.tokenizer.truncation_side = "left"
        self.reward_function = reward_function
        self.max_steps, self.max_prompt_length = max_episode_length, longest
        self._terminate_on_eos = terminate_on_eos
        self._context_start_token = context_start_token
        self._prompt_truncation_side = prompt_truncation_side
        self.sampler_for_replaying = PrioritySampler[Sample](priority_scale)
        for sample, weight in samples:
            self.sampler_for_replaying.add(sample, weight)
        size = vocabulary or len(self.tokenizer)
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
        """Begins with `sample` (or `options["sample"]`), else with one that is drawn by weight."""
        super().reset(seed=seed)
        if seed is not None:
            self._chooser = random.Random(seed)
        sample = sample or (options or {}).get("sample")
        if sample is None:
            (sample,) = self.sampler_for_replaying.sample(1, self._chooser)
        self._steps = 0
        self._observation = Observation.init_from_sample(
            sample,
            self.tokenizer,
            self.max_prompt_length,
            self.max_steps,
            self._prompt_truncation_side,
            self._context_start_token,
            sample.meta_data,
        )
        return self._observation.to_dict(), self._info(self._observation, self._observation)

    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, action: int, *, last: bool = False
    ) -> tuple[dict[str, Ids], float, bool, bool, dict[str, Any]]:
        """Appends a token. `last`: its sampler stopped there, so the episode is terminated whatever the token is.

        Raises `GavelError` for a token that is none, and for a step outside of an episode.
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
