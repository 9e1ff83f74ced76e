"""ART's models, trajectories, settings and judge, and what Gavel does not have of it."""

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel

import gavel.integrations.art as art
from gavel.integrations.art.dev import InternalModelConfig
from gavel.integrations.art.errors import IgnoredSetting, NotInGavelError
from gavel.integrations.art.local import LocalBackend
from gavel.integrations.art.model import Model, TrainableModel
from gavel.integrations.art.rewards.ruler import ruler, ruler_score_group
from gavel.integrations.art.settings import sft_parts, train_config
from gavel.integrations.art.trajectories import History, Trajectory, TrajectoryGroup
from gavel.integrations.art.types import TrainSFTConfig
from gavel.judge.errors import JudgeError
from gavel.trainer.backends.protocol import NotRegisteredError
from gavel.trainer.config import Cispo, ClippedSurrogate, Gspo, Loss, SamplerCorrection, TrainConfig
from gavel.trainer.model import TrainableModel as CoreTrainable
from tests.endpoint import Endpoint, fails, scores


class AgentConfig(BaseModel):
    turns: int = 3


def a_model() -> TrainableModel[AgentConfig]:
    internal: InternalModelConfig = {"peft_args": {"r": 4}, "chat_template_kwargs": {"enable_thinking": False}}
    return TrainableModel[AgentConfig](
        name="a/1", project="mail", base_model="x", config=AgentConfig(), _internal_config=internal
    )


def test_a_copy_can_be_renamed_and_keeps_its_settings() -> None:
    first = a_model()
    second: Any = first.model_copy(deep=True)
    second.name = "a-2"
    second.config.turns = 5
    assert first.config == AgentConfig(turns=3)
    assert second.gavel_model().key == ("mail", "a-2")
    second.name = "a-3"
    inner = second.gavel_model()
    assert isinstance(inner, CoreTrainable)
    assert (inner.key, inner.lora.rank) == (("mail", "a-3"), 4)
    assert inner.policy.chat_template_kwargs == {"enable_thinking": False}
    assert first.gavel_model().name == "a--1"


def test_state_is_merged_and_stays(tmp_path: Path) -> None:
    model = Model(name="a", project="mail", base_path=str(tmp_path))
    assert model.read_state() is None
    model.overwrite_state({"step": 1, "nested": {"a": 1}})
    assert model.merge_state({"nested": {"b": 2}}) == {"step": 1, "nested": {"a": 1, "b": 2}}
    assert Model(name="a", project="mail", base_path=str(tmp_path)).read_state() == model.read_state()
    assert os.listdir(tmp_path / "mail" / "models" / "a") == ["state.json"]


async def test_a_prompted_model_is_named_as_its_api_knows_it() -> None:
    model = Model(name="best", project="mail", inference_model_name="openai/gpt-5-mini", inference_api_key="k")
    assert (model.get_inference_name(), await model.get_step()) == ("openai/gpt-5-mini", 0)
    assert model.litellm_completion_params()["model"] == "openai/gpt-5-mini"
    with pytest.raises(NotRegisteredError, match="register"):
        await model.log([])
    with pytest.raises(NotRegisteredError, match="register"):
        await a_model().train([])
    with pytest.raises(NotRegisteredError, match="register"):
        a_model().backend()


class Mail(Trajectory):
    answer: str | None = None


def test_the_reward_is_0_from_the_start_fields_of_one_s_own_stay_and_every_message_has_a_content() -> None:
    mail = Mail(messages_and_choices=[], answer="Monday", metadata={"step": 1})
    assert (mail.reward, mail.answer, mail.logs, mail.metrics) == (0.0, "Monday", [], {})
    (kept,) = TrajectoryGroup([mail])
    assert kept is mail
    assert "reward=0.0" in str(mail)
    turn = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None}}
    items = [{"role": "user", "content": "hi"}, Choice.construct(None, **turn), {"role": "tool", "tool_call_id": "1"}]
    for kind in (Trajectory, History):
        assert [each["content"] for each in kind(messages_and_choices=items).messages()] == ["hi", "", ""]


def translated(groups: int = 4, trajectories: int = 32, **given: Any) -> TrainConfig:
    return train_config(given, given.pop("trainer", {}), groups=groups, trajectories=trajectories)


@pytest.mark.parametrize(
    ("given", "loss"),
    [
        ({}, Cispo(ratio_cap=5.0)),
        ({"loss_fn": "ppo"}, ClippedSurrogate(clip_low=0.2, clip_high=0.2)),
        ({"ppo": True, "epsilon": 0.1, "epsilon_high": 0.3}, ClippedSurrogate(clip_low=0.1, clip_high=0.3)),
        (
            {"ppo": True, "max_negative_advantage_importance_sampling_weight": 3.0},
            ClippedSurrogate(clip_low=0.2, clip_high=0.2, dual_clip=3.0),
        ),
        ({"importance_sampling_level": "sequence", "epsilon": 0.01}, Gspo(clip_low=0.01, clip_high=0.01)),
    ],
)
def test_the_loss_is_the_one_that_art_would_use(given: dict[str, Any], loss: Loss) -> None:
    assert translated(**given).loss == loss
    with pytest.raises(NotInGavelError, match="Choose cispo or ppo"):
        translated(loss_fn="dro")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"learning_rate": 5e-6, "advantage": "std", "beta": 0.0, "kl_in_reward": 0.0, "reference": "base"}),
        ({"learning_rate": 1e-4, "beta": 0.1}, {"learning_rate": 1e-4, "beta": 0.1}),
        ({"scale_rewards": False}, {"advantage": "mean"}),
        ({"normalize_advantages": False}, {"advantage": "mean"}),
        ({"truncated_importance_sampling": 2.5}, {"sampler_correction": SamplerCorrection(cap=2.5)}),
        ({"kl_penalty_coef": 0.02, "kl_penalty_reference_step": 3}, {"kl_in_reward": 0.02, "reference": "3"}),
        (
            {"trainer": {"max_grad_norm": 0.3, "weight_decay": 0.1, "adam_beta2": 0.99}},
            {"max_gradient_norm": 0.3, "weight_decay": 0.1, "adam_betas": (0.9, 0.99)},
        ),
    ],
)
def test_a_setting_with_a_counterpart_is_translated(given: dict[str, Any], expected: dict[str, Any]) -> None:
    config = translated(**given)
    assert {name: getattr(config, name) for name in expected} == expected


@given(st.integers(1, 20), st.integers(1, 16), st.none() | st.integers(1, 400))
def test_there_is_an_update_for_each_group_or_fewer(groups: int, size: int, sequences: int | None) -> None:
    updates = translated(groups, groups * size, grad_accumulation_sequences=sequences).mini_batches
    assert 1 <= updates <= groups
    assert updates == groups or (sequences is not None and sequences * updates >= groups * size)


@given(st.integers(1, 70), st.integers(1, 3))
def test_every_trajectory_is_trained_once_in_order_at_its_parts_mean_rate(number: int, size: int) -> None:
    members = [Trajectory(metadata={"n": n}) for n in range(number)]
    batches = -(-number // size)
    rates = [1e-4 * (n + 1) for n in range(batches)]
    parts = list(sft_parts(members, TrainSFTConfig(learning_rate=rates, batch_size=size)))
    assert [member for part, _ in parts for member in part] == members
    assert len(parts) == -(-batches // 16)
    for number, (_, config) in enumerate(parts):
        chosen = rates[16 * number : 16 * (number + 1)]
        assert config.learning_rate == pytest.approx(sum(chosen) / len(chosen))


JUDGE = "openai/judge"


def a_group(*replies: str) -> TrajectoryGroup:
    question = {"role": "user", "content": "Where is it?"}
    return TrajectoryGroup(
        Trajectory(messages_and_choices=[question, {"role": "assistant", "content": reply}], reward=0.25)
        for reply in replies
    )


async def test_scores_are_rewards_and_metrics_or_numbered_and_the_first_reward_is_kept(endpoint: Endpoint) -> None:
    endpoint.script = [scores(0.5)]
    judged: Any = await ruler_score_group(a_group("here", "there"), JUDGE, endpoint.params)
    for member in judged:
        assert (member.reward, member.metrics["ruler_score"]) == (0.5, 0.5)
        assert member.metrics["independent_reward"] == 0.25
        assert any(line.startswith("RULER explanation: ") for line in member.logs)
    lists = [member.messages() for member in a_group("here", "there")]
    got = await ruler(lists, judge_model=JUDGE, extra_litellm_params=endpoint.params)
    assert [(score.trajectory_id, score.score) for score in got] == [("1", 0.5), ("2", 0.5)]
    assert await ruler([], JUDGE) == []


async def test_a_member_without_messages_leaves_its_group_and_a_judge_that_fails_is_an_error_or_none(endpoint, capsys):
    group = a_group("here", "there")
    endpoint.script = [fails(401)]
    with pytest.raises(JudgeError):
        await ruler_score_group(group, JUDGE, endpoint.params)
    assert await ruler_score_group(group, JUDGE, endpoint.params, swallow_exceptions=True) is None
    assert "[art_ruler] Swallowed exception" in capsys.readouterr().out
    endpoint.script = [scores(0.7)]
    group.trajectories.append(Trajectory(messages_and_choices=[], reward=0.0))
    judged: Any = await ruler_score_group(group, JUDGE, endpoint.params)
    assert [member.reward for member in judged] == [0.7, 0.7]
    assert "no messages" in judged.exceptions[0].message
    assert len(group) == 3
    with pytest.raises(JudgeError, match="no messages"):
        await ruler_score_group(TrajectoryGroup([Trajectory(messages_and_choices=[])]), JUDGE, endpoint.params)


def test_what_has_no_effect_is_named_once_and_what_is_not_there_says_where_to_look() -> None:
    for owner in (a_model(), Model(name="a", project="mail"), LocalBackend()):
        with pytest.raises(AttributeError, match=r"\.activate_metrics_context is not in .*art; docs/art.md"):
            owner.activate_metrics_context("train")  # type: ignore[union-attr]
    with pytest.warns(IgnoredSetting, match=r"train\(kimi_k2_tau=…\) has no effect in Gavel"):
        translated(kimi_k2_tau=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        translated(kimi_k2_tau=0.1)
        translated(kimi_k2_tau=None, plot_tensors=False, logprob_calculation_chunk_size=1024, verbose=True)
    with pytest.warns(IgnoredSetting, match="gpu_cost_per_hour_usd"):
        LocalBackend(gpu_cost_per_hour_usd=2.0)
    for refused in (art.ServerlessBackend, art.skypilot.SkyPilotBackend):
        with pytest.raises(NotInGavelError, match="Gavel"):
            refused()
    with pytest.raises(AttributeError, match=r"docs/art\.md"):
        _ = art.nothing  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.warns(IgnoredSetting, match="colour=…") as told:
        Model(name="a", project="mail", colour="red")
    assert told[0].filename == __file__, "the user's own line"


def test_one_rate_is_one_step_a_rate_of_0_trains_nothing_and_too_few_are_refused() -> None:
    ((_, config),) = sft_parts([Trajectory()] * 5, TrainSFTConfig(learning_rate=1e-4))
    assert (config.learning_rate, config.batch_size) == (1e-4, 2)
    assert list(sft_parts([], TrainSFTConfig())) == []
    assert list(sft_parts([Trajectory()], TrainSFTConfig(learning_rate=[0.0], batch_size=1))) == []
    with pytest.raises(ValueError, match="3 batches of 1 need as many"):
        list(sft_parts([Trajectory()] * 3, TrainSFTConfig(learning_rate=[1e-4], batch_size=1)))
