"""ART's models before and beside their backend."""

import os
from pathlib import Path

import pytest
from pydantic import BaseModel

from gavel.integrations.art.dev import InternalModelConfig
from gavel.integrations.art.errors import IgnoredSetting
from gavel.integrations.art.model import Model, TrainableModel
from gavel.trainer.backends.protocol import NotRegisteredError
from gavel.trainer.model import TrainableModel as CoreTrainable


class AgentConfig(BaseModel):
    turns: int = 3


def a_model() -> TrainableModel[AgentConfig]:
    internal: InternalModelConfig = {"peft_args": {"r": 4}, "chat_template_kwargs": {"enable_thinking": False}}
    return TrainableModel[AgentConfig](
        name="a/1", project="mail", base_model="x", config=AgentConfig(), _internal_config=internal
    )


def test_a_copy_can_be_renamed_and_keeps_its_settings() -> None:
    first = a_model()
    second = first.model_copy(deep=True)
    second.name = "a-2"
    assert second.config is not None
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


def test_a_field_that_is_not_known_is_named() -> None:
    with pytest.warns(IgnoredSetting, match="colour=…") as told:
        Model(name="a", project="mail", colour="red")
    assert told[0].filename == __file__, "the user's own line"


@pytest.mark.parametrize("owner", [a_model(), Model(name="a", project="mail")])
def test_what_is_not_there_says_where_to_look(owner: object) -> None:
    assert not hasattr(owner, "activate_metrics_context")
    with pytest.raises(
        AttributeError, match=r"\.activate_metrics_context is not in gavel.integrations.art; docs/art.md"
    ):
        owner.activate_metrics_context("train")  # type: ignore[attr-defined]
