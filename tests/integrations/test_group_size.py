"""The sizes of groups that users give, and the choice for members without a score."""

from collections.abc import Callable
from typing import Any

import pytest

import gavel
from gavel.integrations._rewards import group_size
from gavel.scenarios.errors import JudgeError

HOOKS: dict[str, Callable[..., Any]] = {
    "trl": gavel.integrations.trl.reward_func,
    "slime": gavel.integrations.slime.custom_rm,
    "verifiers": gavel.integrations.verifiers.finalize,
    "verifiers_rubric": gavel.integrations.verifiers.rubric_func,
    "tinker": gavel.integrations.tinker.compute_group_rewards,
    "eval_protocol": gavel.integrations.eval_protocol.evaluate,
    "areal": lambda judge, **options: gavel.integrations.areal.arun_episode(judge, **{"group_size": 2, **options}),
    "nemo_rl": lambda judge, **options: gavel.integrations.nemo.step(judge, **{"group_size": 2, **options}),
    "skyrl": lambda judge, **options: gavel.integrations.skyrl.get_generator(None, None, judge, **options),
    "verl": lambda _, **options: gavel.integrations.verl.compute_score("http://127.0.0.1:1", **{"n": 2, **options}),
}
SIZES = {"trl": "num_generations", "areal": "group_size", "nemo_rl": "group_size", "verl": "n"}


@pytest.mark.parametrize("given", [2, 8, "8"])
def test_two_or_more_are_a_group(given: object):
    assert group_size("n", given) == int(str(given))


@pytest.mark.parametrize("given", [0, 1, -2, 2.5, "", "x", True, None])
@pytest.mark.parametrize("hook", SIZES)
def test_what_is_no_size_of_a_group_is_refused_at_once(hook: str, given: object):
    if hook == "trl" and given is None:
        pytest.skip("its trainer knows")
    with pytest.raises(JudgeError, match=f"{SIZES[hook]}=.* is no size of a group"):
        HOOKS[hook]("stand-in", **{SIZES[hook]: given})


@pytest.mark.parametrize("hook", HOOKS)
def test_an_unknown_choice_for_what_is_not_scored_is_refused_at_once(hook: str):
    with pytest.raises(JudgeError, match="there is no unscored='members'"):
        HOOKS[hook]("stand-in", unscored="members")
