"""ART's helpers for scripts: gathers, tasks of MCP servers, checkpoints, datasets."""

import asyncio
import contextlib
import io
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

import gavel.integrations.art as art
from gavel.integrations.art import gather
from gavel.integrations.art.batches import trajectory_group_batches
from gavel.integrations.art.local import LocalBackend
from gavel.integrations.art.mcp import (
    GeneratedScenario,
    GeneratedScenarioCollection,
    MCPResource,
    MCPTool,
    complete_task_tool,
    generate_scenarios,
)
from gavel.integrations.art.model import link_checkpoints
from gavel.integrations.art.trajectories import Trajectory, TrajectoryGroup
from gavel.integrations.art.utils import output_dirs, sft
from gavel.integrations.art.utils.iterate_dataset import iterate_dataset
from gavel.integrations.art.utils.limit_concurrency import limit_concurrency
from gavel.integrations.art.utils.retry import retry
from gavel.integrations.art.yield_trajectory import capture_yielded_trajectory, yield_trajectory
from gavel.scenarios.gather import GatherError
from gavel.trainer.runs.checkpoints import Checkpoints
from gavel.trainer.runs.run_directory import NamedCheckpointError, RunDirectory, RunDirectoryError
from tests.endpoint import Endpoint, says


async def one(reward: float = 1.0) -> Trajectory:
    await asyncio.sleep(0)
    return Trajectory(reward=reward)


async def pair() -> tuple[Trajectory, Trajectory]:
    return Trajectory(reward=1.0), Trajectory(reward=0.0)


async def failing() -> Trajectory:
    raise ValueError("no")


@pytest.mark.filterwarnings("error")
async def test_tuples_become_lists_in_input_order_and_an_error_is_raised_and_leaves_no_coroutine_behind() -> None:
    async def empty() -> list[Trajectory]:
        return []

    x_and_o, single, none = await gather.gather_trajectories([pair(), one(), empty()], pbar_desc=None)
    assert [trajectory.reward for trajectory in x_and_o] == [1.0, 0.0]
    assert (single.reward, none) == (1.0, [])
    with pytest.raises(GatherError, match="no"):
        await gather.gather_trajectories([failing(), one(), pair()])


async def test_a_failure_that_is_borne_is_given_and_one_too_many_is_raised() -> None:
    for context in (gather.GatherContext(), gather.GatherContext(pbar=tqdm(total=2, disable=True), max_exceptions=0.4)):
        with gather.set_gather_context(context), pytest.raises(ValueError, match="no"):
            await gather.wrap_group_awaitable(failing())
    with gather.set_gather_context(gather.GatherContext(max_exceptions=1)):
        got = [await gather.wrap_trajectories_awaitable(one) for one in (pair(), failing())]
    assert [type(each) for each in got] == [list, ValueError]
    bar = tqdm(total=5, disable=False, file=io.StringIO())  # counts trajectories
    with gather.set_gather_context(gather.GatherContext(pbar=bar)):
        await gather.wrap_group_awaitable(TrajectoryGroup([Trajectory(), Trajectory(), one()]))
        await gather.wrap_group_awaitable(pair())
    assert bar.n == 5


async def test_batches_come_in_input_order_and_can_be_skipped() -> None:
    groups = [TrajectoryGroup([one(number)]) for number in range(5)]
    batches = [
        [group.trajectories[0].reward for group in batch]
        async for batch in trajectory_group_batches(groups, batch_size=2, skip_batches=1, pbar_desc=None)
    ]
    assert batches == [[2, 3], [4]]


async def test_the_last_trajectory_that_was_yielded_counts() -> None:
    async def rollout(*rewards: float) -> None:
        for reward in rewards:
            yield_trajectory(Trajectory(reward=reward))

    assert (await capture_yielded_trajectory(rollout(0.1, 0.2))).reward == 0.2
    with pytest.raises(RuntimeError, match="no trajectory was yielded"):
        await capture_yielded_trajectory(rollout())
    with pytest.raises(RuntimeError, match="inside capture_yielded_trajectory"):
        yield_trajectory(Trajectory())


DRAFT = {"scenarios": [{"task": f"Find order {n}.", "difficulty": n} for n in (1, 3, 5)]}


async def test_tasks_are_drafted_from_tools_and_resources(endpoint: Endpoint) -> None:
    endpoint.script = [lambda _: says(json.dumps(DRAFT))]
    scenarios = await generate_scenarios(
        [MCPTool("look_up", "finds {{ an }} order"), {"name": "pay"}],
        [MCPResource("file:///orders")],
        num_scenarios=3,
        custom_instructions="Only refunds.",
        generator_api_key="none",
        generator_base_url=f"{endpoint.url}/v1",
    )
    train, held_out = scenarios.split(2)
    assert ([s.difficulty for s in train], [s.task for s in held_out]) == ([1, 3], ["Find order 5."])
    prompt = endpoint.requests[0]["messages"][0]["content"]
    assert all(part in prompt for part in ("finds {{ an }} order", "pay", "file:///orders", "Only refunds.", "3 tasks"))


async def test_another_number_of_tasks_and_a_missing_key_are_errors(endpoint: Endpoint, monkeypatch) -> None:
    endpoint.script = [lambda _: says(json.dumps(DRAFT))]
    monkeypatch.setenv("OPENROUTER_API_KEY", "none")
    with pytest.raises(ValueError, match="3 scenarios, not 4"):
        await generate_scenarios([complete_task_tool], num_scenarios=4, generator_base_url=f"{endpoint.url}/v1")
    with pytest.raises(ValueError, match="neither tools nor resources"):
        await generate_scenarios([])
    monkeypatch.delenv("OPENROUTER_API_KEY")
    with pytest.raises(ValueError, match="OPENROUTER_API_KEY"):
        await generate_scenarios([complete_task_tool])


SCENARIOS = GeneratedScenarioCollection(GeneratedScenario(f"task {n}", 1 + n % 5) for n in range(7))


def test_records_are_the_same_after_json(capsys: pytest.CaptureFixture[str]) -> None:
    tool = MCPTool.from_dict({"name": "look", "parameters": {"type": "object"}})
    assert tool.to_tool_schema()["function"] == {"name": "look", "description": "", "parameters": {"type": "object"}}
    resource = {"uri": "file:///a", "name": "", "description": "", "mimeType": "text/plain"}
    assert MCPResource.from_dict(resource).to_dict() == resource
    assert GeneratedScenarioCollection.from_json(SCENARIOS.to_json()).to_dicts() == SCENARIOS.to_dicts()
    assert len(GeneratedScenarioCollection.from_json('[{"task": "x", "difficulty": 2}]')) == 1
    assert sorted(s.task for s in SCENARIOS.shuffle()) == [s.task for s in SCENARIOS]
    assert [s.difficulty for s in SCENARIOS.filter_by_difficulty(4)] == [4, 5]
    assert SCENARIOS.get_summary()["total_scenarios"] == 7
    SCENARIOS.preview(1)
    SCENARIOS.print_difficulty_distribution()
    assert capsys.readouterr().out.count("task") == 1


async def test_a_fork_begins_with_the_newest_whole_checkpoint_up_to_a_step(tmp_path: Path) -> None:
    with contextlib.closing(RunDirectory(tmp_path, "p", "first")) as first:
        first.describe({"project": "p", "name": "first", "base_model": "b", "from_checkpoint": {"named": "x"}})
        for step in ("2", "5"):

            def write(path: Path, step: str = step) -> None:
                (path / "weights").write_text(step)

            first.checkpoints.save(int(step), write)
    fork = LocalBackend(path=str(tmp_path))._experimental_fork_checkpoint
    second = art.TrainableModel[None](name="second", project="q", base_model="b")
    with pytest.raises(NamedCheckpointError, match="up to 1"):
        await fork(second, "first", from_project="p", not_after_step=1)
    await fork(second, "first", from_project="p", not_after_step=4)
    copies = Checkpoints(tmp_path / "q" / "second" / "checkpoints")
    assert (copies.steps(), copies.latest()) == ([2], 2)
    assert (copies.path(2) / "weights").read_text() == "2"
    description = json.loads((tmp_path / "q" / "second" / "model.json").read_text())
    assert (description["project"], description["name"], description["base_model"]) == ("q", "second", "b")
    assert "from_checkpoint" not in description
    with pytest.raises(RunDirectoryError, match="begun already"):
        await fork(second, "first", from_project="p")


def test_links_follow_the_checkpoints(tmp_path: Path) -> None:
    saved, links = tmp_path / "p" / "m" / "checkpoints", tmp_path / "p" / "models" / "m" / "checkpoints"
    assert link_checkpoints(saved, links) is None
    for step in (1, 12):
        (saved / f"{step:06d}").mkdir(parents=True)
    assert link_checkpoints(saved, links) == links / "0012"
    (saved / "000012" / "adapter").write_text("x")
    assert (links / "0012" / "adapter").read_text() == "x"
    (saved / "000001").rmdir()
    link_checkpoints(saved, links)
    assert [entry.name for entry in links.iterdir()] == ["0012"]


@given(st.integers(0, 12), st.integers(1, 5), st.integers(1, 3), st.integers(0, 20))
def test_every_item_comes_once_an_epoch(size: int, per_step: int, epochs: int, begin: int) -> None:
    whole = list(iterate_dataset(list(range(size)), per_step, epochs, use_tqdm=False))
    for epoch in range(epochs):
        assert sorted(item for batch in whole if batch.epoch == epoch for item in batch.items) == list(range(size))
    assert [batch.step for batch in whole] == list(range(len(whole)))
    assert list(iterate_dataset(list(range(size)), per_step, epochs, begin, use_tqdm=False)) == whole[begin:]
    batches = iterate_dataset(["a", "b", "c", "d", "e"], groups_per_step=2, use_tqdm=False)
    assert [batch.items for batch in batches] == [["c", "b"], ["a", "e"], ["d"]], "the order that art gives"


@pytest.mark.parametrize(("by_key", "most"), [(False, 2), (True, 4)])
async def test_no_more_calls_run_at_once_than_allowed(by_key: bool, most: int) -> None:
    running, seen = Counter[str](), list[int]()

    @limit_concurrency(2, derive_key=(lambda number: str(number % 2)) if by_key else None)
    async def call(number: int) -> int:
        running["now"] += 1
        seen.append(running["now"])
        await asyncio.sleep(0.001)
        running["now"] -= 1
        return number

    assert await asyncio.gather(*map(call, range(10))) == list(range(10))
    assert max(seen) == most


def test_directories_are_those_that_a_run_has() -> None:
    model = art.TrainableModel[None](name="a", project="p", base_model="b")
    assert output_dirs.get_models_dir("p") == ".art/p/models"
    assert Path(output_dirs.get_model_dir(model)) == model.output_dir
    directory = output_dirs.get_output_dir_from_model_properties("p", "a", "/runs")
    assert output_dirs.get_step_checkpoint_dir(directory, 7) == "/runs/p/models/a/checkpoints/0007"
    assert output_dirs.get_trajectories_split_dir(directory, "val") == "/runs/p/a/trajectories/val"


async def test_a_function_has_three_attempts_plain_or_awaited() -> None:
    told: list[int] = []
    made: list[int] = []
    decorate = retry(delay=0, on_retry=lambda error, attempt: told.append(attempt))

    async def fail_until(attempt: int) -> str:
        made.append(1)
        if len(made) < attempt:
            raise ValueError("no")
        return "done"

    assert await decorate(fail_until)(3) == "done"
    with pytest.raises(ValueError, match="no"):
        decorate(lambda: int("no"))()
    assert told == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("method", "rates"),
    [("constant", [0.5, 1, 1, 1, 1]), ("linear", [0.5, 1, 1, 0.5, 0]), ("cosine", [0.5, 1, 1, 0.5, 0])],
)
def test_a_schedule_warms_up_and_decays(method: sft.Schedule, rates: list[float]) -> None:
    assert sft.create_lr_schedule(5, 1.0, method, warmup_steps=2) == pytest.approx(rates)
    assert sft.create_lr_schedule(0, 1.0) == []


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 10))
def test_chunks_hold_every_trajectory_once_an_epoch(number: int, chunk: int, size: int, epochs: int, skip: int) -> None:
    members = [Trajectory(metadata={"n": n}) for n in range(number)]
    chunks = list(sft.create_sft_dataset_iterator(members, chunk, epochs, size, show_progress=False))
    for epoch in range(epochs):
        chosen = [member for part in chunks if part.epoch == epoch for member in part.trajectories]
        assert sorted(chosen, key=lambda member: int(str(member.metadata["n"]))) == members
    for part in chunks:
        assert isinstance(part.config.learning_rate, list)
        assert len(part.config.learning_rate) == -(-len(part.trajectories) // size)
    rest = sft.create_sft_dataset_iterator(members, chunk, epochs, size, initial_step=skip * chunk, show_progress=False)
    assert [part.step for part in rest] == [part.step for part in chunks[skip:]]


def test_a_file_is_read_in_an_order_of_its_own_each_epoch(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    rows = [{"messages": [{"role": "user", "content": str(n)}]} for n in range(6)]
    file.write_text("\n\n".join(map(json.dumps, rows)))
    assert sft.get_file_row_count(str(file)) == 6
    order = [member.messages()[0]["content"] for member in sft.iterate_file(file, epochs=2, shuffle_buffer_size=3)]
    assert sorted(order[:6]) == sorted(order[6:]) == list("012345")
    assert order[:6] != order[6:]
    later = sft.iterate_file(file, epochs=2, shuffle_buffer_size=3, initial_skip=4)
    assert [member.messages()[0]["content"] for member in later] == order[4:]
    with pytest.raises(ValueError, match="only JSONL"):
        sft.get_file_row_count("data.csv")
