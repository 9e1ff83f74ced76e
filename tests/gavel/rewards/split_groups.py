"""A run of TRL's GRPOTrainer, and `python -m tests.gavel.rewards.split_groups FOLDER URL`: one process of two.

Each process writes what its reward function was given and gave, and after the training the error of a judge that fails.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch import distributed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

import gavel
from gavel.llm.types import Message
from tests.gavel.rewards.tiny_policy import LETTERS, tiny_policy

Conversations = Sequence[list[Message]]
STEPS, MEMBERS, PER_PROCESS = 2, 4, 6
SHORT = {
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "logging_steps": 1,
    "max_completion_length": 10,
    "max_steps": 1,
}


def rows(count: int = 8) -> Dataset:
    """Conversational prompts, each a different one."""
    return Dataset.from_list([{"prompt": [{"role": "user", "content": f"write {LETTERS[n]}"}]} for n in range(count)])


def settings(folder: Path, **more: Any) -> GRPOConfig:
    """A short run on the CPU that logs each step and stores nothing."""
    given = {"num_generations": 8, "per_device_train_batch_size": 16, "learning_rate": 1e-2, "max_steps": 20}
    return GRPOConfig(str(folder), **{**SHORT, **given, **more})


def train(folder: Path, url: str) -> None:
    """Two steps whose groups are split over the processes."""
    judge = gavel.Judge(gavel.Juror("openai/gpt-5-mini", params={"api_base": url, "api_key": "none"}), orders=2)
    reward = gavel.rewards.trl(judge)

    def recorded(prompts: Conversations, completions: Conversations, **more: Any) -> list[float | None]:
        rewards = reward(prompts, completions, **more)
        with (folder / f"{distributed.get_rank()}.jsonl").open("a") as file:
            print(json.dumps({"prompts": prompts, "completions": completions, "rewards": rewards}), file=file)
        return rewards

    model, tokenizer = tiny_policy()
    args = settings(folder, max_steps=STEPS, num_generations=MEMBERS, per_device_train_batch_size=PER_PROCESS)
    GRPOTrainer(model, recorded, args=args, train_dataset=rows(), processing_class=tokenizer).train()


def fail(folder: Path) -> None:
    """A batch of two groups; the second process judges the second one, without the key that its judge needs."""
    rank = distributed.get_rank()
    reward = gavel.rewards.trl("openai/gpt-5-mini" if rank else "constant")
    try:
        reward([f"task {rank}"] * 2, ["a", "b"])
    except Exception as error:
        (folder / f"{rank}.error").write_text(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    train(Path(sys.argv[1]), sys.argv[2])
    fail(Path(sys.argv[1]))
