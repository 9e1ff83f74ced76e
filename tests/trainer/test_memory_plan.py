"""Plans for devices that are not here, from configs alone."""

import re
from typing import Any

import pytest

from gavel.trainer.config import TrainConfig, VllmSettings
from gavel.trainer.device_memory import GIB
from gavel.trainer.learner.step_bytes import MARGIN
from gavel.trainer.memory.plan import Device, MemoryPlan, make_plan
from gavel.trainer.policy.loading import BaseModelError
from gavel.trainer.run_config import RunConfig
from tests.trainer.counted_steps import counted_once
from tests.trainer.families import FAMILIES

pytestmark = pytest.mark.slow

MIB = 2**20
BY_NAME = {family.name: family for family in FAMILIES}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Configs without weights, by family."""

    def make(name: str, **changes: Any) -> str:
        path = tmp_path_factory.mktemp("config")
        config = BY_NAME[name].read_config()
        for key, value in changes.items():
            setattr(config, key, value)
        config.save_pretrained(path)
        return str(path)

    return make


@pytest.fixture(scope="module", autouse=True)
def _plans_share_steps():
    with counted_once():
        yield


def plan(source: str, size: int, kind: Any = "cuda", **settings: Any) -> MemoryPlan:
    return make_plan(source, RunConfig.model_validate({"scenario": "", **settings}), Device(kind, size))


def test_weights_that_are_published_quantized_are_told(directory):
    published = directory("Qwen3", quantization_config={"quant_method": "gptq", "bits": 4})
    assert plan(published, 400 * MIB).published == "gptq"
    assert plan(directory("Qwen3"), 400 * MIB).published is None


def test_what_fits_adds_up(directory):
    found = plan(directory("Qwen3"), 400 * MIB)
    passed = found.pass_checkpointed if found.checkpointing else found.pass_whole
    parts = found.base + found.adapter_and_optimizer + found.sampler_bytes + passed
    assert found.fits
    assert found.remedies == []
    assert found.checkpointing
    assert found.needed == pytest.approx(parts, abs=8)
    assert found.needed <= 400 * MIB * (1 - MARGIN)
    assert found.pass_checkpointed < found.pass_whole
    assert found.context == 512, "the model's own, which is shorter"
    assert found.largest_group == 256 + 8 * 256


def test_an_empty_directory_of_weights_is_enough_and_none_is_loaded(directory, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", fail)
    assert plan(directory("SmolLM2"), GIB).parameters == plan(directory("SmolLM2"), 2 * GIB).parameters


@pytest.mark.parametrize(
    ("size", "settings", "remedies"),
    [
        (GIB, {}, []),
        (
            40 * MIB,
            {"train": {"gradient_checkpointing": False, "micro_batch_tokens": 30000}},
            ["--gradient-checkpointing", "--micro-batch-tokens"],
        ),
        (MIB // 4, {"backend": {"max_context": 256}}, ["--shard-base --nproc 8"]),
        (MIB // 4, {"backend": {"engine": "vllm"}}, ["backend.engine.sleep=true", "--shard-base"]),
    ],
)
def test_what_does_not_fit_gets_options_that_exist(directory, size, settings, remedies):
    from gavel.cli.options import RUN_FLAGS

    found = plan(directory("Qwen3"), size, **settings)
    assert found.fits == (not remedies)
    told = "\n".join(found.remedies)
    assert all(remedy in told for remedy in remedies), told
    flags = {flag.name for flag in RUN_FLAGS} | {"--set"}
    assert {word.rstrip(":") for word in told.split() if word.startswith("--")} <= flags


def test_the_options_that_are_advised_make_it_fit(directory):
    model = directory("Qwen3")
    settings: Any = {"gradient_checkpointing": False, "micro_batch_tokens": 30000}
    assert not plan(model, 40 * MIB, train=settings).fits
    advice = plan(model, 40 * MIB, train=settings).remedies
    tokens = next(int(re.split(r"[ :]", each)[1]) for each in advice if each.startswith("--micro-batch-tokens"))
    assert plan(model, 40 * MIB, train={"gradient_checkpointing": True, "micro_batch_tokens": tokens}).fits


def test_four_bits_and_shards_hold_less_of_the_base(directory):
    model = directory("Qwen3", hidden_size=256, intermediate_size=1024)
    whole = plan(model, GIB)
    quantized = plan(model, GIB, model={"policy": {"quantization": "4bit"}})
    sharded = plan(model, GIB, backend={"shard_base": True, "processes": 4, "engine": "http://127.0.0.1:1"})
    assert quantized.base < 0.75 * whole.base
    assert sharded.base < whole.base
    assert sharded.sampler_bytes == 0, "a server elsewhere"
    assert whole.parameters == quantized.parameters


def test_a_vllm_here_takes_its_share(directory):
    own = plan(directory("Qwen3"), GIB, backend={"engine": "vllm"})
    assert own.sampler_bytes == pytest.approx(VllmSettings().gpu_memory_utilization * GIB, rel=1e-6)


def test_on_a_cpu_nothing_is_recomputed_and_weights_are_merged(directory):
    found = plan(directory("Qwen3"), GIB, "cpu")
    assert (found.dtype, found.checkpointing) == ("float32", TrainConfig().gradient_checkpointing or False)
    assert found.micro_batch_tokens == 16384


def test_what_a_run_refuses_its_plan_refuses(directory):
    with pytest.raises(BaseModelError, match="no dropout"):
        plan(directory("Qwen3-MoE"), GIB, model={"lora": {"experts": True, "dropout": 0.1}})


def test_experts_that_are_adapted_count(directory):
    base = directory("Qwen3-MoE", max_position_embeddings=4096)
    without, found = plan(base, GIB), plan(base, GIB, model={"lora": {"experts": True}})
    layers, experts, hidden, inner, rank = 2, 4, 32, 16, 16
    more = layers * experts * rank * (hidden + 2 * inner + inner + hidden)
    assert found.adapter_parameters == without.adapter_parameters + more
    assert found.adapted_layers == without.adapted_layers + 2 * layers
    assert found.pass_whole > without.pass_whole


@pytest.mark.parametrize("name", ["DeepSeek V3", "Qwen3-MoE", "LFM2"])
def test_every_kind_of_family_has_a_plan(directory, name):
    found = plan(directory(name, max_position_embeddings=4096), GIB)  # as few sequences as can be
    assert found.fits
    assert found.pass_checkpointed < found.pass_whole
