"""Schedules and chunks of supervised training."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.compat.art.trajectories import Trajectory
from gavel.compat.art.utils.sft import (
    Schedule,
    create_lr_schedule,
    create_sft_dataset_iterator,
    get_file_row_count,
    iterate_file,
)


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
