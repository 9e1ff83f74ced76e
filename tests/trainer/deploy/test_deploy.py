import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.deploy.deploy import facts_of_run
from gavel.trainer.deploy.record import DeployError, read_records
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.model import TrainableModel
from tests.trainer.deploy.trained_run import LORA, make_run
from tests.trainer.engines.vllm_stand_in import BASE, StandIn

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs")


@pytest.fixture
def server() -> Iterator[StandIn]:
    running = StandIn()
    yield running
    running.close()


def test_a_step_is_found_by_number_as_the_newest_and_as_the_best(run: Path) -> None:
    rows = [{"step": step, "split": "held_out", "success": value} for step, value in ((10, 0.2), (11, 0.9), (12, 0.5))]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"step": 13, "spl')
    assert facts_of_run(run, "latest").step == 12
    assert facts_of_run(run, "best").step == 11
    assert facts_of_run(run, 10).step == 10
    with pytest.raises(DeployError, match="step 7") as refusal:
        facts_of_run(run, 7)
    assert "10, 11, 12" in refusal.value.remedy
    with pytest.raises(DeployError, match="val/reward"):
        facts_of_run(run, "best", "val/reward")


def test_the_best_step_of_damaged_metrics_is_told_of(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run / "metrics.jsonl").write_text('{"step": 10, "spl\n{"step": 11, "split": "held_out", "success": 0.1}\n')
    facts_of_run(run, "latest")
    assert not caplog.messages
    assert facts_of_run(run, "best").step == 11
    assert "1 row of" in caplog.text


def test_a_damaged_checkpoint_is_not_deployed(run: Path) -> None:
    (run / "checkpoints" / "000012" / "adapter_model.safetensors").write_bytes(b"torn")
    assert facts_of_run(run, "latest").step == 11
    with pytest.raises(DeployError):
        facts_of_run(run, 12)


async def test_a_registered_model_is_deployed_and_its_record_lies_in_its_run(
    tmp_path: Path, server: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    model = TrainableModel(name="new", project="desk", base_model=EMBEDDED_POLICY, lora=LORA)
    said = [{"role": "user", "content": "Refund 1?"}, {"role": "assistant", "content": "Yes."}]
    async with LocalBackend(tmp_path / "runs", max_context=256) as backend:
        await model.register(backend)
        with pytest.raises(DeployError, match="new has no whole checkpoint of any step"):
            await model.deploy(f"vllm:{server.url}", step="best")
        await model.train_sft([Trajectory(messages_and_choices=said)])
        deployment = await model.deploy(f"vllm:{server.url}", base=BASE, smoke_test=False)
        assert list(server.adapters) == [deployment.model_id]
        assert "-s1-" in deployment.model_id
        assert "gavel undeploy" in capsys.readouterr().out
        (record,) = read_records(tmp_path / "runs" / "desk" / "new")
        assert record.id == deployment.id
        await deployment.undeploy()
    assert server.adapters == {}
