"""A run of TRL's GRPOTrainer, and `python -m tests.integrations.split_groups FOLDER`: two processes of it.

They are forks, since importing TRL takes longer than the run. FOLDER gets what each prints to stderr.

Each process writes what its reward function was given and gave, and after the training the error of one that fails.
"""

import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch import distributed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

import gavel
from gavel.llm.types import Message
from gavel.scenarios.errors import JudgeError
from tests.integrations.letters_judge import by_letters_and_position_here
from tests.integrations.tiny_policy import LETTERS, tiny_policy

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


def train(folder: Path) -> None:
    """Steps whose groups are split over the processes."""

    async def judge(messages: list[Message], schema: Message) -> str:
        with (folder / f"{distributed.get_rank()}.asked").open("a") as file:
            file.write(".")
        return await by_letters_and_position_here(messages, schema)

    reward = gavel.integrations.trl.reward_func(gavel.Judge(judge, orders=2))

    def recorded(prompts: Conversations, completions: Conversations, **more: Any) -> list[float | None]:
        rewards = reward(prompts, completions, **more)
        with (folder / f"{distributed.get_rank()}.jsonl").open("a") as file:
            print(json.dumps({"prompts": prompts, "completions": completions, "rewards": rewards}), file=file)
        return rewards

    model, tokenizer = tiny_policy()
    args = settings(folder, max_steps=STEPS, num_generations=MEMBERS, per_device_train_batch_size=PER_PROCESS)
    GRPOTrainer(model, recorded, args=args, train_dataset=rows(), processing_class=tokenizer).train()


def fail(folder: Path) -> None:
    """A batch that the second process cannot read."""
    rank = distributed.get_rank()
    reward = gavel.integrations.trl.reward_func("constant", group_by="task" if rank else None)
    try:
        reward(["one"] * 2, ["a", "b"])
    except JudgeError as error:
        (folder / f"{rank}.error").write_text(str(error))


def fork(folder: Path, rank: int) -> int:
    """Starts one of the processes, as torchrun would; gives its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    os.dup2(os.open(folder / f"{rank}.stderr", os.O_WRONLY | os.O_CREAT), 2)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    try:
        train(folder)
        fail(folder)
        distributed.barrier()  # threads of a group that is still open may abort a process that ends after the other
        distributed.destroy_process_group()
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    children = [fork(Path(sys.argv[1]), rank) for rank in range(2)]
    sys.exit(max(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children))
