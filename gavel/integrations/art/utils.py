"""ART's helpers for scripts."""

import asyncio
import itertools
import json
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, TypeVar, cast

import tenacity
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel
from tenacity import RetryCallState
from tqdm.auto import tqdm

import gavel.scenarios.trajectory as core
from gavel.integrations.art.errors import add_aliases
from gavel.integrations.art.model import Model, TrainableModel, gavel_name, newest_step
from gavel.integrations.art.trajectories import Trajectory
from gavel.integrations.art.types import TrainSFTConfig
from gavel.llm.types import Message
from gavel.scenarios.trajectory import as_item

logger = logging.getLogger(__name__)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Item = TypeVar("Item")
Schedule = Literal["cosine", "linear", "constant"]
_ROOT = ".art"

add_aliases(
    __name__,
    *("format_message", "get_model_step", "get_repo_root_path", "get_trajectory_messages", "iterate_dataset"),
    *("limit_concurrency", "litellm", "output_dirs", "retry", "sft", "strip_logprobs"),
)


def format_message(message: Mapping[str, Any]) -> str:
    """The role, the content, and one line for each tool call."""
    calls = [call["function"] for call in message.get("tool_calls") or () if "function" in call]
    lines = [f"{call['name']}({call['arguments']})" for call in calls]
    content = message.get("content") or message.get("refusal")
    return "\n".join([f"{message['role'].capitalize()}:", *([content] if content else []), *lines])


def strip_logprobs(value: Any) -> Any:
    """A copy of dicts, lists and pydantic models without `logprobs`."""
    match value:
        case BaseModel():
            fields = {name: None if name == "logprobs" else strip_logprobs(field) for name, field in value}
            return value.model_copy(update=fields)
        case Mapping():
            items = cast("Mapping[Any, Any]", value).items()
            return {key: strip_logprobs(item) for key, item in items if key != "logprobs"}
        case list() | tuple():
            items = [*map(strip_logprobs, cast("Sequence[Any]", value))]
            return tuple(items) if isinstance(value, tuple) else items
        case _:
            return value


def get_trajectory_messages(trajectory: core.Trajectory | dict[str, Any]) -> list[Message]:
    """The conversation as message dicts."""
    known = trajectory if isinstance(trajectory, core.Trajectory) else Trajectory.model_validate(trajectory)
    return known.messages()


def get_step_from_dir(output_dir: str) -> int:
    """The highest step with a checkpoint under `output_dir`; 0 if there is none."""
    return newest_step(Path(output_dir, "checkpoints"))


def get_model_step(model: TrainableModel[Any], art_path: str) -> int:
    """The step of the newest checkpoint of `model` under `art_path`."""
    return get_step_from_dir(get_model_dir(model, art_path))


def get_repo_root_path() -> str:
    """The nearest enclosing directory that is a git repository, this one included; without one, this one."""
    here = Path.cwd()
    return str(next((path for path in (here, *here.parents) if (path / ".git").exists()), here))


def get_default_art_path() -> str:
    return _ROOT


def get_models_dir(project_name: str, art_path: str | None = None) -> str:
    return f"{art_path or _ROOT}/{gavel_name(project_name)}/models"


def get_output_dir_from_model_properties(project: str, name: str, art_path: str | None = None) -> str:
    return f"{get_models_dir(project, art_path)}/{gavel_name(name)}"


def get_model_dir(model: Model[Any], art_path: str | None = None) -> str:
    return get_output_dir_from_model_properties(model.project, model.name, art_path)


def get_step_checkpoint_dir(model_output_dir: str, step: int) -> str:
    """The PEFT adapter of a step."""
    return f"{model_output_dir}/checkpoints/{step:04d}"


def get_trajectories_dir(model_output_dir: str) -> str:
    """The trajectories of the run directory, which is beside `models`."""
    directory = Path(model_output_dir)
    return str(directory.parent.parent / directory.name / "trajectories")


def get_trajectories_split_dir(model_output_dir: str, split: str) -> str:
    return f"{get_trajectories_dir(model_output_dir)}/{split}"


def limit_concurrency(
    n: int, derive_key: Callable[..., str] | None = None
) -> Callable[[Callable[Parameters, Awaitable[Result]]], Callable[Parameters, Awaitable[Result]]]:
    """Limits concurrent calls to `n`; with `derive_key(*args, **kwargs)`, to `n` per key."""

    def decorate(function: Callable[Parameters, Awaitable[Result]]) -> Callable[Parameters, Awaitable[Result]]:
        semaphores: dict[str, asyncio.Semaphore] = {}

        @wraps(function)
        async def limited(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            key = derive_key(*args, **kwargs) if derive_key else ""
            async with semaphores.setdefault(key, asyncio.Semaphore(n)):
                return await function(*args, **kwargs)

        return limited

    return decorate


def convert_litellm_choice_to_openai(litellm_choice: Any) -> Choice:
    """The choice with its token ids. A trajectory takes LiteLLM's own choice as well. Raises `TypeError`."""
    choice = as_item(litellm_choice)
    if not isinstance(choice, Choice):
        raise TypeError(
            f"a choice of a completion that was not streamed is needed, not {type(litellm_choice).__name__}"
        )
    return choice


@dataclass
class DatasetBatch(Generic[Item]):
    """The items of one training step."""

    items: list[Item]
    step: int
    """Step number from 0, over all epochs."""
    epoch: int
    epoch_step: int


def iterate_dataset(
    dataset: Sequence[Item],
    groups_per_step: int = 1,
    num_epochs: int = 1,
    initial_step: int = 0,
    use_tqdm: bool = True,
) -> Iterator[DatasetBatch[Item]]:
    """Yields the batches from `initial_step` on; each epoch's order depends on its number alone, as in ART."""
    steps = math.ceil(len(dataset) / groups_per_step)
    total, hidden = steps * num_epochs, not use_tqdm or not dataset
    numbers = range(initial_step, total)
    for step in tqdm(numbers, "Iterating dataset", total, unit="batch", initial=initial_step, disable=hidden):
        epoch, epoch_step = divmod(step, steps)
        order = list(range(len(dataset)))
        random.Random(epoch).shuffle(order)
        chosen = order[epoch_step * groups_per_step : (epoch_step + 1) * groups_per_step]
        yield DatasetBatch([dataset[index] for index in chosen], step, epoch, epoch_step)


class SFTChunk(NamedTuple):
    """The arguments of one call of `model.train_sft`."""

    trajectories: list[Trajectory]
    config: TrainSFTConfig
    step: int
    """Number of batches before it, over all epochs."""
    epoch: int
    epoch_step: int


_SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
}


def create_lr_schedule(
    total_steps: int, peak_lr: float, method: Schedule = "linear", warmup_steps: int = 0, min_lr: float = 0.0
) -> list[float]:
    """One learning rate per batch: warm-up to the peak, then decay to `min_lr` (constant: no decay)."""
    if method not in _SHAPES:
        raise ValueError(f"no schedule {method!r}: choose cosine, linear or constant")
    falling = total_steps - warmup_steps
    shares = [(step + 1) / warmup_steps for step in range(min(warmup_steps, total_steps))]
    shares += [_SHAPES[method](step / max(1, falling - 1)) for step in range(falling)]
    return [min_lr + (peak_lr - min_lr) * share for share in shares]


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
    """Yields chunks of `chunk_size` batches; the schedule spans all of them, and a restart repeats their order."""
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, not {chunk_size}")
    per_epoch = math.ceil(len(trajectories) / batch_size)
    total = per_epoch * epochs
    rates = create_lr_schedule(total, peak_lr, schedule_type, int(total * warmup_ratio))
    chunks = [(epoch, step) for epoch in range(epochs) for step in range(0, per_epoch, chunk_size)]
    for epoch, epoch_step in tqdm(chunks[initial_step // chunk_size :], "SFT Training", disable=not show_progress):
        order = list(trajectories)
        if shuffle:
            random.Random(seed + epoch).shuffle(order)
        members = order[epoch_step * batch_size : (epoch_step + chunk_size) * batch_size]
        step = epoch * per_epoch + epoch_step
        chosen = rates[step : step + math.ceil(len(members) / batch_size)]
        yield SFTChunk(members, TrainSFTConfig(learning_rate=chosen, batch_size=batch_size), step, epoch, epoch_step)


def get_file_row_count(file_path: str | Path) -> int:
    """Number of conversations in a JSONL file."""
    return sum(1 for _ in _rows(file_path))


def iterate_file(
    file_path: str | Path,
    epochs: int = 1,
    shuffle_buffer_size: int = 10_000,
    seed: int = 42,
    initial_skip: int = 0,
) -> Iterator[Trajectory]:
    """Conversations of a JSONL file with `messages` and `tools`, shuffled in a buffer, in another order each epoch."""

    def shuffled(epoch: int) -> Iterator[str]:
        chance, buffer = random.Random(seed + epoch), list[str]()
        for row in _rows(file_path):
            buffer.append(row)
            if len(buffer) >= shuffle_buffer_size:
                yield buffer.pop(chance.randrange(len(buffer)))
        chance.shuffle(buffer)
        yield from buffer

    rows = itertools.chain.from_iterable(map(shuffled, range(epochs)))
    for row in itertools.islice(rows, initial_skip, None):
        fields = json.loads(row)
        yield Trajectory(messages_and_choices=fields["messages"], tools=fields.get("tools"))


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
    total = math.ceil(get_file_row_count(file_path) * epochs / batch_size)
    rates = create_lr_schedule(total, peak_lr, schedule_type, int(total * warmup_ratio))[initial_step:final_step]
    if not rates:
        return
    members = iterate_file(file_path, epochs, shuffle_buffer_size, initial_skip=initial_step * batch_size)
    chosen = itertools.islice(members, len(rates) * batch_size)
    await model.train_sft(chosen, TrainSFTConfig(learning_rate=rates, batch_size=batch_size), _config, verbose)


def _rows(file_path: str | Path) -> Iterator[str]:
    if Path(file_path).suffix != ".jsonl":
        raise ValueError(f"only JSONL files are read, not {file_path}")
    with Path(file_path).open(encoding="utf-8") as file:
        yield from filter(str.strip, file)


def retry(
    max_attempts: int = 3,
    delay: float = 0.25,
    backoff_factor: float = 2.0,
    exceptions: tuple[type[Exception], ...] = (Exception,),
    on_retry: Callable[[Exception, int], None] | None = None,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Retries a sync or async call up to `max_attempts` times, with pauses of `delay` seconds, multiplied by
    `backoff_factor`.

    `on_retry(error, attempt)` is called before each pause, in place of a warning in the log.
    """

    def report(state: RetryCallState) -> None:
        error = cast("Exception", state.outcome and state.outcome.exception())
        if on_retry is not None:
            on_retry(error, state.attempt_number)
        else:
            name = getattr(state.fn, "__name__", repr(state.fn))
            logger.warning("attempt %d of %d of %s failed: %s", state.attempt_number, max_attempts, name, error)

    return tenacity.retry(
        stop=tenacity.stop_after_attempt(max_attempts),
        wait=tenacity.wait_exponential(multiplier=delay, exp_base=backoff_factor),
        retry=tenacity.retry_if_exception_type(exceptions),
        before_sleep=report,
        reraise=True,
    )
