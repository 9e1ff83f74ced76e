"""ART's helpers for scripts."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gavel.integrations.art as art
from gavel.integrations.art.trajectories import Trajectory
from gavel.integrations.art.utils.iterate_dataset import iterate_dataset
from gavel.integrations.art.utils.limit_concurrency import limit_concurrency
from gavel.integrations.art.utils.output_dirs import (
    get_model_dir,
    get_models_dir,
    get_output_dir_from_model_properties,
    get_step_checkpoint_dir,
    get_trajectories_split_dir,
)
from gavel.integrations.art.utils.retry import retry
from gavel.integrations.art.utils.sft import (
    Schedule,
    create_lr_schedule,
    create_sft_dataset_iterator,
    get_file_row_count,
    iterate_file,
)


@given(st.integers(0, 12), st.integers(1, 5), st.integers(1, 3), st.integers(0, 20))
def test_every_item_comes_once_an_epoch(size: int, per_step: int, epochs: int, begin: int) -> None:
    whole = list(iterate_dataset(list(range(size)), per_step, epochs, use_tqdm=False))
    for epoch in range(epochs):
        assert sorted(item for batch in whole if batch.epoch == epoch for item in batch.items) == list(range(size))
    assert [batch.step for batch in whole] == list(range(len(whole)))
    assert list(iterate_dataset(list(range(size)), per_step, epochs, begin, use_tqdm=False)) == whole[begin:]


def test_the_order_of_the_first_epoch_is_the_one_that_art_gives() -> None:
    batches = iterate_dataset(["a", "b", "c", "d", "e"], groups_per_step=2, use_tqdm=False)
    assert [batch.items for batch in batches] == [["c", "b"], ["a", "e"], ["d"]]


@pytest.mark.parametrize(("by_key", "most"), [(False, 2), (True, 4)])
async def test_no_more_calls_run_at_once_than_allowed(by_key: bool, most: int) -> None:
    running: list[int] = []
    seen: list[int] = []

    @limit_concurrency(2, derive_key=(lambda number: str(number % 2)) if by_key else None)
    async def call(number: int) -> int:
        running.append(number)
        seen.append(len(running))
        for _ in range(5):
            await asyncio.sleep(0)
        running.remove(number)
        return number

    assert await asyncio.gather(*map(call, range(10))) == list(range(10))
    assert max(seen) == most


def test_directories_are_those_that_a_run_has() -> None:
    model = art.TrainableModel[None](name="a", project="p", base_model="b")
    assert get_models_dir("p") == ".art/p/models"
    assert Path(get_model_dir(model)) == model.output_dir
    directory = get_output_dir_from_model_properties("p", "a", "/runs")
    assert get_step_checkpoint_dir(directory, 7) == "/runs/p/models/a/checkpoints/0007"
    assert get_trajectories_split_dir(directory, "val") == "/runs/p/a/trajectories/val"


@pytest.mark.parametrize(("failures", "outcome"), [(0, "done"), (2, "done"), (3, None)])
async def test_a_function_has_three_attempts_plain_or_awaited(failures: int, outcome: str | None) -> None:
    told: list[int] = []
    decorate = retry(delay=0, on_retry=lambda error, attempt: told.append(attempt))
    for is_async in (False, True):
        told.clear()
        attempts = iter(range(9))

        def plain() -> str:
            if next(attempts) < failures:  # noqa: B023
                raise ValueError("no")
            return "done"

        async def awaited() -> str:
            return plain()

        async def call() -> str:
            return await decorate(awaited)() if is_async else decorate(plain)()  # noqa: B023

        await expect(call, outcome)
        assert told == list(range(1, min(failures, 2) + 1))


async def expect(call: Callable[[], Awaitable[str]], outcome: str | None) -> None:
    if outcome is None:
        with pytest.raises(ValueError, match="no"):
            await call()
    else:
        assert await call() == outcome


@pytest.mark.parametrize(
    ("method", "rates"),
    [("constant", [0.5, 1, 1, 1, 1]), ("linear", [0.5, 1, 1, 0.5, 0]), ("cosine", [0.5, 1, 1, 0.5, 0])],
)
def test_a_schedule_warms_up_and_decays(method: Schedule, rates: list[float]) -> None:
    assert create_lr_schedule(5, 1.0, method, warmup_steps=2) == pytest.approx(rates)
    assert create_lr_schedule(0, 1.0) == []


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 10))
def test_chunks_hold_every_trajectory_once_an_epoch(number: int, chunk: int, size: int, epochs: int, skip: int) -> None:
    members = [Trajectory(metadata={"n": n}) for n in range(number)]
    chunks = list(create_sft_dataset_iterator(members, chunk, epochs, size, show_progress=False))
    for epoch in range(epochs):
        chosen = [member for part in chunks if part.epoch == epoch for member in part.trajectories]
        assert sorted(chosen, key=lambda member: str(member.metadata["n"])) == sorted(
            members, key=lambda member: str(member.metadata["n"])
        )
    for part in chunks:
        assert isinstance(part.config.learning_rate, list)
        assert len(part.config.learning_rate) == -(-len(part.trajectories) // size)
    again = create_sft_dataset_iterator(members, chunk, epochs, size, initial_step=skip * chunk, show_progress=False)
    assert [part.step for part in again] == [part.step for part in chunks[skip:]]


def test_a_file_is_read_in_an_order_of_its_own_each_epoch(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    rows = [{"messages": [{"role": "user", "content": str(n)}]} for n in range(6)]
    file.write_text("\n\n".join(map(json.dumps, rows)))
    assert get_file_row_count(str(file)) == 6
    order = [member.messages()[0]["content"] for member in iterate_file(file, epochs=2, shuffle_buffer_size=3)]
    assert sorted(order[:6]) == sorted(order[6:]) == list("012345")
    assert order[:6] != order[6:]
    later = iterate_file(file, epochs=2, shuffle_buffer_size=3, initial_skip=4)
    assert [member.messages()[0]["content"] for member in later] == order[4:]
    with pytest.raises(ValueError, match="only JSONL"):
        get_file_row_count("data.csv")
