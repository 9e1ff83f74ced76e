from pathlib import Path

import pytest

from gavel.trainer.deploy.record import AdapterFacts, DeployError, read_facts


def test_facts_are_those_of_the_files(adapter: AdapterFacts) -> None:
    assert (adapter.rank, adapter.targets, adapter.dtype) == (8, ("q_proj", "v_proj"), "F32")
    assert adapter.size == (adapter.directory / "adapter_model.safetensors").stat().st_size
    assert [file.name for file in adapter.files()] == ["adapter_config.json", "adapter_model.safetensors"]
    assert not adapter.base_is_local


@pytest.mark.parametrize("damage", ["no config", "no json", "cut weights", "no lora"])
def test_what_is_no_adapter_is_refused_with_its_name(adapter: AdapterFacts, damage: str) -> None:
    config, weights = adapter.files()
    match damage:
        case "no config":
            config.unlink()
        case "no json":
            config.write_text("[1]")
        case "cut weights":
            weights.write_bytes(weights.read_bytes()[:20])
        case _:
            weights.write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(DeployError, match=str(adapter.directory)):
        read_facts(adapter.directory, project="desk", name="clerk", step=12, base_model="Qwen/Qwen3-8B")


def test_a_built_in_base_is_local(tmp_path: Path, adapter: AdapterFacts) -> None:
    for base in (str(tmp_path), "embedded/returns-desk"):
        facts = read_facts(adapter.directory, project="p", name="n", step=1, base_model=base)
        assert facts.base_is_local
