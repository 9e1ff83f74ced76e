"""Supervised training from files and lists, in chunks with a learning-rate schedule."""

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gavel.compat.art.model import TrainableModel
from gavel.compat.art.trajectories import Trajectory
from gavel.compat.art.types import TrainSFTConfig

Schedule = Literal["cosine", "linear", "constant"]


class SFTChunk(NamedTuple):
    """What one call of `model.train_sft` takes."""

    trajectories: list[Trajectory]
    config: TrainSFTConfig
    step: int
    """Batches before it, over all epochs."""
    epoch: int
    epoch_step: int


def create_lr_schedule(
    total_steps: int,
    peak_lr: float,
    method: Schedule = "linear",
    warmup_steps: int = 0,
    min_lr: float = 0.0,
) -> list[float]:
    """A rate for each batch: up to the peak over the warm-up, then down to `min_lr` (constant: not at all)."""
    rates: list[float] = []
    span = peak_lr - min_lr
    for step in range(total_steps):
        if step < warmup_steps:
            rates.append(min_lr + span * (step + 1) / warmup_steps)
            continue
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps - 1)
        match method:
            case "constant":
                rates.append(peak_lr)
            case "linear":
                rates.append(peak_lr - span * progress)
            case "cosine":
                rates.append(min_lr + span * (1 + math.cos(math.pi * progress)) / 2)
            case _:
                raise ValueError(f"no schedule {method!r}: choose cosine, linear or constant")
    return rates


def create_sft_dataset_iterator(
    trajectories: Sequence[Trajectory],
    chunk_size: int = 10,
    epochs: int = 1,
    batch_size: int = 2,
    peak_lr: float = 2e-4,
    schedule_type: Schedule = "linear",
    warmup_ratio: float = 0.1,
    shuffle: bool = True,
    seed: int = 42,
    initial_step: int = 0,
    show_progress: bool = True,
) -> Iterator[SFTChunk]:
    """Chunks of `chunk_size` batches; the schedule goes over all of them, and a restart repeats their order."""
    from tqdm.auto import tqdm

    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, not {chunk_size}")
    if not trajectories:
        return
    per_epoch = math.ceil(len(trajectories) / batch_size)
    total = per_epoch * epochs
    rates = create_lr_schedule(total, peak_lr, schedule_type, int(total * warmup_ratio))
    done = initial_step // chunk_size
    number = 0
    with tqdm(initial=initial_step, total=total, desc="SFT Training", unit="step", disable=not show_progress) as bar:
        for epoch in range(epochs):
            order = list(trajectories)
            if shuffle:
                random.Random(seed + epoch).shuffle(order)
            for epoch_step in range(0, per_epoch, chunk_size):
                number += 1
                if number <= done:
                    continue
                members = order[epoch_step * batch_size : (epoch_step + chunk_size) * batch_size]
                batches = math.ceil(len(members) / batch_size)
                step = epoch * per_epoch + epoch_step
                config = TrainSFTConfig(learning_rate=rates[step : step + batches], batch_size=batch_size)
                yield SFTChunk(members, config, step, epoch, epoch_step)
                bar.update(batches)


def get_file_row_count(file_path: str | Path) -> int:
    """Conversations in a JSONL file."""
    with _opened(file_path).open(encoding="utf-8") as file:
        return sum(bool(line.strip()) for line in file)


def iterate_file(
    file_path: str | Path,
    epochs: int = 1,
    shuffle_buffer_size: int = 10_000,
    seed: int = 42,
    initial_skip: int = 0,
) -> Iterator[Trajectory]:
    """Conversations of a JSONL file with `messages` and `tools`, shuffled in a buffer, another order each epoch."""
    return itertools.islice(_conversations(_opened(file_path), epochs, shuffle_buffer_size, seed), initial_skip, None)


async def train_sft_from_file(
    model: TrainableModel[Any],
    file_path: str | Path,
    epochs: int = 1,
    batch_size: int = 2,
    peak_lr: float = 2e-4,
    schedule_type: Schedule = "linear",
    warmup_ratio: float = 0.1,
    initial_step: int = 0,
    final_step: int | None = None,
    _config: Mapping[str, Any] | None = None,
    verbose: bool = False,
    shuffle_buffer_size: int = 10_000,
) -> None:
    """Trains on a JSONL file with one schedule; `initial_step` and `final_step` count batches."""
    rows = get_file_row_count(file_path) * epochs
    total = math.ceil(rows / batch_size)
    rates = create_lr_schedule(total, peak_lr, schedule_type, int(total * warmup_ratio))[initial_step:final_step]
    if not rates:
        return
    skipped = initial_step * batch_size
    members = iterate_file(file_path, epochs, shuffle_buffer_size, initial_skip=skipped)
    chosen = itertools.islice(members, len(rates) * batch_size)
    await model.train_sft(chosen, TrainSFTConfig(learning_rate=rates, batch_size=batch_size), _config, verbose)


def _opened(file_path: str | Path) -> Path:
    path = Path(file_path)
    if path.suffix != ".jsonl":
        raise ValueError(f"only JSONL files are read, not {path}")
    return path


def _conversations(path: Path, epochs: int, buffer_size: int, seed: int) -> Iterator[Trajectory]:
    for epoch in range(epochs):
        chance = random.Random(seed + epoch)
        buffer: list[Trajectory] = []
        with path.open(encoding="utf-8") as file:
            for line in filter(str.strip, file):
                fields = json.loads(line)
                buffer.append(Trajectory(messages_and_choices=fields["messages"], tools=fields.get("tools")))
                if len(buffer) >= buffer_size:
                    yield buffer.pop(chance.randrange(len(buffer)))
        chance.shuffle(buffer)
        yield from buffer
