"""A script and a notebook in the shapes that users of ART write, on the embedded model and the stand-in judge."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

import gavel.integrations.art as art
from gavel.integrations.art.local import LocalBackend
from gavel.integrations.art.rewards import ruler_score_group
from gavel.integrations.art.utils.sft import train_sft_from_file
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.runs.run_directory import NamedCheckpointError
from tests.endpoint import Endpoint
from tests.integrations.judges import by_text

pytestmark = pytest.mark.slow


class AgentConfig(BaseModel):
    max_tokens: int = 8


def a_model(name: str = "agent", **fields: Any) -> "art.TrainableModel[AgentConfig]":
    return art.TrainableModel[AgentConfig](
        name=name, project="mail", base_model="embedded/returns-desk", config=AgentConfig(), **fields
    )


async def rollout(model: "art.Model[AgentConfig]", question: str) -> art.Trajectory:
    assert model.config is not None
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": question}], metadata={"question": question}
    )
    async with (
        AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key) as client,
        trajectory.track_duration("llm"),
    ):
        completion = await client.chat.completions.create(
            model=model.get_inference_name(),
            messages=trajectory.messages(),  # pyright: ignore[reportArgumentType]
            max_completion_tokens=model.config.max_tokens,
        )
    trajectory.messages_and_choices.append(completion.choices[0])
    trajectory.reward = random.random()
    return trajectory.finish()


def some_groups(model: "art.Model[AgentConfig]") -> list[art.TrajectoryGroup]:
    questions = ("Where is order 1001?", "Refund order 1002!")
    return [art.TrajectoryGroup(rollout(model, question) for _ in range(3)) for question in questions]


def stored(path: Path, split: str, step: int) -> list[int]:
    store = TrajectoryStore(path / "mail" / "agent" / "trajectories" / split / f"{step:06d}.jsonl.zst")
    return [len(group) for group in store]


@pytest.mark.filterwarnings("ignore::gavel.integrations.art.errors.IgnoredSetting")
async def test_both_calls_of_training_store_their_step_once(tmp_path: Path) -> None:
    settings = art.dev.InternalModelConfig(
        init_args=art.dev.InitArgs(max_seq_length=1024, gpu_memory_utilization=0.5),
        peft_args=art.dev.PeftArgs(r=4, lora_alpha=8),
    )
    model = a_model(_internal_config=settings)
    with LocalBackend(in_process=True, path=str(tmp_path)) as backend:
        await model.register(backend)
        assert model.inference_model_name == "agent"

        groups = await art.gather_trajectory_groups(some_groups(model), pbar_desc="gather", max_exceptions=1)
        result = await model.train(groups, config=art.TrainConfig(learning_rate=1e-4), _config={"ppo": True})
        assert (result.step, stored(tmp_path, "train", 1)) == (1, [3, 3])

        groups = await art.gather_trajectory_groups(some_groups(model))
        skipped = await art.gather_trajectories(rollout(model, "unused") for _ in range(2))
        await model.log([*groups, art.TrajectoryGroup(skipped)], split="train")
        result = await backend.train(model, groups, learning_rate=1e-4, loss_fn="cispo")
        await model.log(groups, metrics={**result.metrics, "epoch": 1.0}, step=result.step, split="train")
        assert (await model.get_step(), stored(tmp_path, "train", 2)) == (2, [3, 3])
        assert stored(tmp_path, "logged", 1)[-1] == 2

        await model.log([*skipped, ValueError("no")], split="val", metrics={"accuracy": 0.5})
        await model.log(split="val", metrics={"later": 1.0})
        await model.delete_checkpoints()
        assert result.checkpoint_path is not None
        assert json.loads((Path(result.checkpoint_path) / "adapter_config.json").read_text())["r"] == 4
        links = tmp_path / "mail" / "models" / "agent" / "checkpoints"
        await model.train([], config=art.TrainConfig())
        assert sorted(entry.name for entry in links.iterdir()) == ["0002", "0003"]
    rows = [json.loads(line) for line in (tmp_path / "mail" / "agent" / "metrics.jsonl").read_text().splitlines()]
    logged = [(row["split"], row["step"]) for row in rows if "reward" in row or "epoch" in row]
    assert logged == [("train", 1), ("train", 2), ("train", 2), ("val", 2)]
    assert [row["accuracy"] for row in rows if "accuracy" in row] == [0.5]


@pytest.mark.filterwarnings("ignore::gavel.integrations.art.errors.IgnoredSetting")
async def test_demonstrations_a_prompted_model_and_state_work_as_in_a_notebook_run_twice(tmp_path: Path) -> None:
    demonstration = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    (tmp_path / "data.jsonl").write_text(json.dumps({"messages": demonstration}) + "\n")
    prompted = art.Model(name="openai/gpt-5-mini", project="mail", config=None)
    model, backend = a_model("pupil"), LocalBackend(path=str(tmp_path))
    for run in range(2):
        model, backend = a_model("pupil"), LocalBackend(path=str(tmp_path))
        await asyncio.gather(model.register(backend), prompted.register(backend))
        await train_sft_from_file(model, str(tmp_path / "data.jsonl"), epochs=2, batch_size=1, peak_lr=1e-4)
        assert await model.get_step() == run + 1
        model.merge_state({"run": {str(run): True}})
        await prompted.log([art.Trajectory(reward=1.0)])
        await backend._experimental_push_to_s3(model)  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(NamedCheckpointError, match="no whole checkpoint"):
            await backend._experimental_fork_checkpoint(model, "other")  # pyright: ignore[reportPrivateUsage]
    await backend.close()
    assert model.read_state() == {"run": {"0": True, "1": True}}
    assert art.utils.get_model_step(model, str(tmp_path)) == 2


async def test_a_ruler_notebook_trains_tokens_on_judged_rewards(tmp_path: Path, endpoint: Endpoint) -> None:
    endpoint.script = [by_text]
    model, trained = a_model(), 0.0
    async with LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        for batch in art.utils.iterate_dataset(
            ["Where is order 1001?"], num_epochs=2, initial_step=await model.get_step()
        ):
            groups = await art.gather_trajectory_groups(
                (art.TrajectoryGroup(rollout(model, question) for _ in range(12)) for question in batch.items),
                pbar_desc="gather",
                after_each=lambda group: ruler_score_group(
                    group, "openai/judge", endpoint.params, swallow_exceptions=True
                ),
            )
            for member in groups[0]:
                assert member.reward == member.metrics["ruler_score"] != member.metrics["independent_reward"]
            result = await model.train(groups, config=art.TrainConfig(learning_rate=1e-5))
            trained += result.metrics["tokens_trained"]
        assert await model.get_step() == 2
    assert trained > 0
