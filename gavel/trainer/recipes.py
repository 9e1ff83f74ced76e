"""Published algorithms by name, as settings of `TrainConfig`.

    gavel.recipe("dapo")                                 TrainConfig(advantage="std", loss=ClippedSurrogate(...), ...)
    gavel.recipe("cispo", learning_rate=5e-6)            the same with a setting of one's own
    gavel train SCENARIO --recipe dapo                   its settings, under those that other options name

docs/algorithms.md has the papers and the formulas.
"""

from typing import Any, Literal, get_args

from gavel.base.errors import GavelError
from gavel.trainer.config import TrainConfig

RecipeName = Literal[
    "grpo", "dr_grpo", "dapo", "gspo", "cispo", "scalerl", "rloo", "reinforce_pp", "top_entropy", "ppo"
]

RECIPES: dict[RecipeName, dict[str, Any]] = {
    "grpo": {"advantage": "std", "loss": {"kind": "grpo", "aggregation": "grpo"}, "beta": 0.04},
    "dr_grpo": {"loss": {"kind": "grpo", "aggregation": "dr_grpo"}},
    "dapo": {
        "advantage": "std",
        "loss": {"kind": "grpo", "clip_high": 0.28, "aggregation": "dapo"},
        "mask_truncated": True,
    },
    "gspo": {"advantage": "std", "loss": {"kind": "gspo"}, "mini_batches": 4},
    "cispo": {"advantage": "std", "loss": {"kind": "cispo"}},
    "scalerl": {"normalize_over_batch": True, "loss": {"kind": "cispo", "aggregation": "bnpo"}},
    "rloo": {
        "advantage": "rloo",
        "loss": {"kind": "reinforce", "aggregation": "dr_grpo", "constant_length": 1},
        "kl_in_reward": 0.03,
        "kl_in_reward_per": "sequence",
    },
    "reinforce_pp": {"normalize_over_batch": True, "loss": {"kind": "grpo"}, "beta": 1e-3, "kl_estimator": "k2"},
    "top_entropy": {
        "advantage": "std",
        "loss": {"kind": "grpo", "clip_high": 0.28, "aggregation": "dapo"},
        "mask_truncated": True,
        "top_entropy": 0.2,
    },
    "ppo": {"loss": {"kind": "ppo"}, "kl_in_reward": 0.02, "epochs": 4},
}
"""The settings that each names; all others keep their defaults."""

LOOP_SETTINGS: dict[RecipeName, dict[str, Any]] = {"dapo": {"refill": 2.0}, "top_entropy": {"refill": 2.0}}
"""Those of the loop (`LoopConfig`) that come with them."""


class RecipeError(GavelError):
    """There is no recipe of that name."""


def recipe_settings(name: str) -> dict[str, Any]:
    """The settings of a recipe as plain data. Raises `RecipeError`."""
    for known, settings in RECIPES.items():
        if name == known:
            return settings
    raise RecipeError(f"there is no recipe {name!r}", f"There are: {', '.join(get_args(RecipeName))}.")


def recipe_tables(name: str) -> dict[tuple[str, str], Any]:
    """The settings of a recipe by their paths in a `RunConfig`, those of the loop included. Raises `RecipeError`."""
    found = {("train", key): value for key, value in recipe_settings(name).items()}
    return found | {
        ("loop", key): value for own, each in LOOP_SETTINGS.items() if own == name for key, value in each.items()
    }


def recipe(name: RecipeName, **settings: Any) -> TrainConfig:
    """The configuration of a published algorithm, with `settings` over it. Raises `RecipeError`."""
    return TrainConfig.model_validate({**recipe_settings(name), **settings})
