"""TRL's own GRPOTrainer with the judge as its reward: a tiny policy, and a judge model on loopback."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from trl.trainer.grpo_trainer import GRPOTrainer

import gavel
from gavel.rewards.background_loop import run
from tests.endpoint import Endpoint
from tests.gavel.rewards.letters_judge import by_letters_and_position, share_of_a
from tests.gavel.rewards.split_groups import MEMBERS, PER_PROCESS, STEPS, rows, settings
from tests.gavel.rewards.tiny_policy import tiny_policy
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
MODEL = "openai/gpt-5-mini"


def test_a_policy_learns_what_the_judge_prefers(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [share_of_a]
    judge = gavel.Judge(gavel.Juror(MODEL, params=endpoint.params), orders=1)
    model, tokenizer = tiny_policy()
    trainer = GRPOTrainer(
        model,
        reward_funcs=gavel.rewards.trl(judge, num_generations=8),
        args=settings(tmp_path),
        train_dataset=rows(),
        processing_class=tokenizer,
    )
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "rewards/judge/mean" in entry]
    assert len(steps) == 20
    rewards = [entry["rewards/judge/mean"] for entry in steps]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2
    assert all(entry["judge/unscored"] == 0 for entry in steps[:3])


def test_a_policy_of_which_nothing_can_be_judged_stays_as_it_is(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [lambda request: share_of_a({**request, "messages": [{}, {"content": ""}]})]  # scores of nobody
    judge = gavel.Judge(gavel.Juror(MODEL, params=endpoint.params), orders=1, content_retries=0)
    model, tokenizer = tiny_policy()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    trainer = GRPOTrainer(
        model,
        reward_funcs=gavel.rewards.trl(judge),
        args=settings(tmp_path, max_steps=2, weight_decay=0.0),
        train_dataset=rows(),
        processing_class=tokenizer,
    )
    trainer.train()
    assert trainer.state.log_history[0]["judge/unscored"] == 1
    assert all(weight.equal(before[name]) for name, weight in model.state_dict().items())


def two_processes(*arguments: str) -> None:
    """Runs `split_groups` as both processes of a run, as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "tests.gavel.rewards.split_groups", *arguments]
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **kept, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=HANG_SECONDS)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], errors


def test_groups_that_are_split_over_two_processes_are_judged_whole(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [by_letters_and_position]
    two_processes(str(tmp_path), endpoint.params["api_base"])
    calls = [[json.loads(line) for line in (tmp_path / f"{rank}.jsonl").read_text().splitlines()] for rank in (0, 1)]
    assert len(calls[0]) == STEPS
    asked = len(endpoint.requests)
    judge = gavel.Judge(gavel.Juror(MODEL, params=endpoint.params), orders=2)
    for first, second in zip(*calls, strict=True):
        prompts, completions, rewards = (first[name] + second[name] for name in ("prompts", "completions", "rewards"))
        assert len(first["rewards"]) == len(second["rewards"]) == PER_PROCESS
        for start in range(0, len(rewards), MEMBERS):  # the second of three groups has members in both processes
            group = range(start, start + MEMBERS)
            members = [gavel.Trajectory(messages_and_choices=[*prompts[n], *completions[n]]) for n in group]
            assert all(prompts[n] == prompts[start] for n in group)
            direct = run(judge.score(gavel.TrajectoryGroup(members)))
            assert [t.reward for t in direct] == [rewards[n] for n in group]
    assert len(endpoint.requests) == 2 * asked  # each group was judged by one process


def test_an_error_in_one_process_ends_both(tmp_path: Path):
    two_processes(str(tmp_path), "fail")
    errors = [(tmp_path / f"{rank}.error").read_text() for rank in (0, 1)]
    assert all("OPENAI_API_KEY" in error for error in errors), errors
