"""A spec is plain data, and a model is the spec of itself."""

import grimp
import pytest
from pydantic import ValidationError

from gavel.base.fields import FieldError
from gavel.trainer.config import LoraSettings
from gavel.trainer.model import Model, TrainableModel
from gavel.trainer.model_spec import ModelSpec, TrainableSpec


def test_a_spec_does_not_change() -> None:
    spec = TrainableSpec(name="clerk", project="desk", base_model="embedded/returns-desk")
    with pytest.raises(ValidationError, match="frozen"):
        spec.name = "other"  # type: ignore[misc]
    assert spec.key == ("desk", "clerk")


def test_a_model_has_the_fields_of_its_spec_and_no_others_are_taken() -> None:
    model = TrainableModel(name="clerk", project="desk", base_model="base", lora=LoraSettings(rank=4))
    assert TrainableSpec.model_validate(model.model_dump(include=set(TrainableSpec.model_fields))).lora.rank == 4
    assert isinstance(model, TrainableSpec)
    assert not isinstance(Model(name="prompted", project="desk"), TrainableSpec)
    with pytest.raises(FieldError, match="base_model"):
        Model(name="prompted", project="desk", base_model="base")  # type: ignore[call-arg]
    with pytest.raises(FieldError, match="base_model"):
        TrainableModel(name="clerk", project="desk")  # type: ignore[call-arg]


def test_a_model_can_be_changed_by_its_user() -> None:
    model = Model(name="prompted", project="desk")
    model.inference_base_url = "http://127.0.0.1:9/v1"
    assert model.inference_base_url == "http://127.0.0.1:9/v1"


def test_the_backends_do_not_import_the_model() -> None:
    imports = grimp.build_graph("gavel", cache_dir=None, exclude_type_checking_imports=True)
    assert imports.chain_exists("gavel.trainer.backends.local", "gavel.trainer.model_spec")
    assert not imports.chain_exists("gavel.trainer.backends.local", "gavel.trainer.model")


def test_the_spec_names_what_identifies_a_model() -> None:
    assert set(ModelSpec.model_fields) == {"name", "project"}
