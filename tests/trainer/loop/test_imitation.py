"""Imitation in steps: everyone once in every epoch, and a run that stops goes on as if it had not."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.backends.protocol import TrainResult
from gavel.trainer.config import SftConfig
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.loop.imitation import imitate, imitation_plan
from gavel.trainer.model import TrainableModel
from gavel.trainer.runs.run_directory import RunDirectoryError


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 12), st.integers(0, 3))
def test_every_epoch_is_a_pass_over_everyone_in_batches(count: int, epochs: int, batch_size: int, seed: int) -> None:
    plan = imitation_plan(count, epochs, batch_size, seed)
    steps = -(-count // batch_size)
    assert len(plan) == epochs * steps
    for epoch in range(epochs):
        batches = plan[epoch * steps : (epoch + 1) * steps]
        assert sorted(at for batch in batches for at in batch) == [*range(count)]
        assert [len(batch) for batch in batches[:-1]] == [batch_size] * (steps - 1)
    assert plan == imitation_plan(count, epochs, batch_size, seed)


def test_epochs_and_seeds_differ_in_their_order() -> None:
    first, second = imitation_plan(20, 2, 20, seed=0)
    assert first != second
    assert imitation_plan(20, 1, 20, seed=1) != [first]


def demonstrations(count: int) -> list[Trajectory]:
    return [
        Trajectory(
            messages_and_choices=[
                {"role": "user", "content": f"May I return order {number}?"},
                {"role": "assistant", "content": "Yes, you may."},
            ]
        )
        for number in range(count)
    ]


CONFIG = SftConfig(learning_rate=1e-3, batch_size=2, epochs=2)


class StopError(Exception):
    """The user stops the run."""


def stop(result: TrainResult) -> None:
    raise StopError


@pytest.mark.slow
async def test_a_run_that_was_stopped_ends_bit_for_bit_like_one_that_was_not(tmp_path: Path) -> None:
    shown = demonstrations(5)
    for name, stops in (("whole", 0), ("stopped", 2)):
        for attempt in range(stops + 1):
            model = TrainableModel(name=name, project="tests", base_model=EMBEDDED_POLICY)
            results: list[TrainResult] = []
            async with LocalBackend(tmp_path) as backend:
                await model.register(backend)
                if attempt < stops:
                    with pytest.raises(StopError):
                        await imitate(model, shown, CONFIG, stepped=stop)
                    continue
                await imitate(model, shown, CONFIG, stepped=results.append)
                assert await model.get_step() == 6
                rates = [row["learning_rate"] for row in backend.history(model, "sft")]
        assert [result.step for result in results] == [*range(1 + stops, 7)]
        assert rates == pytest.approx([1e-3 * rate for rate in (1 / 4, 1 / 2, 3 / 4, 1, 2 / 3, 1 / 3)])
        assert results[-1].metrics["loss"] < 12
    saved = (tmp_path / "tests" / name / "checkpoints" / "000006" for name in ("whole", "stopped"))
    whole, stopped = (load_file(checkpoint / "adapter_model.safetensors") for checkpoint in saved)
    assert all(torch.equal(whole[name], stopped[name]) for name in whole)


@pytest.mark.slow
async def test_a_run_goes_on_with_what_it_began_to_imitate_and_with_nothing_else(tmp_path: Path) -> None:
    shown = demonstrations(4)
    model = TrainableModel(name="clerk", project="tests", base_model=EMBEDDED_POLICY)
    async with LocalBackend(tmp_path) as backend:
        await model.register(backend)
        with pytest.raises(StopError):
            await imitate(model, shown, CONFIG, stepped=stop)
        for other, config, seed in (
            (shown[:3], CONFIG, 0),
            (shown, CONFIG.model_copy(update={"epochs": 3}), 0),
            (shown, CONFIG, 1),
        ):
            with pytest.raises(RunDirectoryError, match="was begun with"):
                await imitate(model, other, config, seed=seed)
        await imitate(model, shown, CONFIG.model_copy(update={"micro_batch_tokens": 512}))
        assert await model.get_step() == 4
