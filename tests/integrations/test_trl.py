"""The reward function as TRL calls it, and in TRL's own trainers: a tiny policy, and a judge model on loopback."""

import inspect
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from torch import distributed
from trl.experimental.async_grpo.async_rollout_worker import RolloutGroup, TrainingSequence, _AsyncRolloutLoop
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

import gavel
from gavel.integrations._rewards import run
from gavel.integrations.trl import reward_func
from gavel.llm.types import Message
from gavel.scenarios.errors import JudgeError
from tests.endpoint import Endpoint, says
from tests.integrations.adapters_page import program
from tests.integrations.adapters_page import run as run_program
from tests.integrations.judges import by_letters_and_position_here, share_of_a
from tests.integrations.tiny_policy import LETTERS, tiny_policy
from tests.limits import HANG_SECONDS

MODEL = "openai/gpt-5-mini"
SHORT = {
    **{"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "disable_tqdm": True},
    **{"logging_steps": 1, "max_completion_length": 10, "max_steps": 1},
}
"""Settings of a short run on the CPU that logs each step and stores nothing."""


def asked(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": text}]


FOUR = ("a b", "a a", "b b", "a c d e")


def batch(*answers: str) -> dict[str, Any]:
    """Completions of one prompt."""
    return {"prompts": [asked("one")] * len(answers), "completions": [said(text) for text in answers]}


@pytest.fixture
def judge(endpoint: Endpoint) -> gavel.Judge:
    endpoint.script = [share_of_a]
    return gavel.Judge(gavel.Juror(MODEL, params=endpoint.params), orders=2)


def test_completions_of_one_prompt_are_judged_together_wherever_they_stand(judge: gavel.Judge, endpoint: Endpoint):
    reward = reward_func(judge)
    prompts = [asked("one"), asked("two"), asked("one"), asked("two")]
    rewards = reward(prompts=prompts, completions=[said("a b"), said("a a"), said("b b"), said("a c d e")])
    assert rewards == [0.5, 1.0, 0.0, 0.25]
    shown = [request["messages"][1]["content"] for request in endpoint.requests]
    assert all(("user: one" in text) != ("user: two" in text) for text in shown)
    rooms = {"prompts": [asked("room 1"), asked("room 2")], "completions": [said("a b"), said("a")], "task": [7, 7]}
    assert reward_func(judge, group_by="task")(**rooms) == [0.5, 1.0]  # a column says what belongs together
    with pytest.raises(JudgeError, match="no column 'job'"):
        reward_func(judge, group_by="job")(**rooms)


@pytest.mark.parametrize("column", ["answer", "solution", "reference", "rubric", "criteria"])
def test_columns_of_the_dataset_reach_the_judge(column: str, judge: gavel.Judge, endpoint: Endpoint):
    reference = "solution" if column == "solution" else None
    value: Any = ["It names the zebra-fact."] if column == "criteria" else "Prefer the zebra-fact."
    reward_func(judge, reference_column=reference)(**batch("a b", "a"), **{column: [value] * 2})
    assert "zebra-fact" in str(endpoint.requests[0]["messages"])


def test_what_the_judge_cannot_score_is_none_and_costs_no_other_group(endpoint: Endpoint):
    endpoint.script = [
        lambda request: says("I cannot tell.") if "user: one" in str(request["messages"]) else share_of_a(request)
    ]
    judge = gavel.Judge(gavel.Juror(MODEL, params=endpoint.params), orders=2)
    prompts = [asked("one"), asked("one"), asked("two"), asked("two")]
    completions = [said("a b"), said("a a"), said("a b"), said("a")]
    for unscored in ("group", "member"):
        found = reward_func(judge, unscored=unscored)(prompts=prompts, completions=completions)
        assert found == [None, None, 0.5, 1.0]
    with pytest.raises(JudgeError, match="scored 0 of 2"):
        reward_func(judge, unscored="raise")(prompts=prompts, completions=completions)


def test_it_logs_explanations_and_what_was_not_scored(judge: gavel.Judge):
    extra: dict[str, list[Any]] = {}
    metrics: dict[str, float] = {}
    rewards = reward_func(judge)(
        prompts=[asked("one"), asked("one"), asked("two"), asked("two")],
        completions=[said("a b"), said("a a"), said("b"), said("b")],
        completion_ids=[[1]] * 4,
        trainer_state=object(),
        log_extra=extra.__setitem__,
        log_metric=metrics.__setitem__,
    )
    assert rewards == [0.5, 1.0, None, None]
    assert extra["judge_explanation"][0] == "counted"
    assert extra["judge_explanation"][2].startswith("not scored: ")
    assert metrics["judge/unscored"] == 0.5
    assert metrics["judge/standard_error"] >= 0


class Trainer:
    """What a GRPOTrainer says of its groups to the reward function that it gives its `_log_metric`."""

    num_generations, model = 4, SimpleNamespace(training=True)

    def log_metric(self, name: str, value: float) -> None: ...


def test_a_number_of_generations_that_is_not_the_trainers_is_refused(judge: gavel.Judge, endpoint: Endpoint):
    with pytest.raises(JudgeError, match=r"num_generations=2 was given, and the trainer makes 4"):
        reward_func(judge, num_generations=2)(**batch(*FOUR), log_metric=Trainer().log_metric)
    assert not endpoint.requests
    rewards = reward_func(judge, num_generations=4)(**batch(*FOUR), log_metric=Trainer().log_metric)
    assert rewards == [0.5, 1.0, 0.0, 0.25]


LEARNING = {"num_generations": 8, "per_device_train_batch_size": 16, "learning_rate": 1e-2, "max_steps": 20}


@pytest.mark.slow
def test_a_policy_learns_what_the_judge_prefers(tmp_path: Path, endpoint: Endpoint):
    endpoint.script = [share_of_a]
    judge = gavel.Judge(gavel.Juror(MODEL, params=endpoint.params), orders=1)
    model, tokenizer = tiny_policy()
    trainer = GRPOTrainer(
        model,
        reward_funcs=gavel.integrations.trl.reward_func(judge, num_generations=8),
        args=GRPOConfig(str(tmp_path), **{**SHORT, **LEARNING}),
        train_dataset=Dataset.from_list([{"prompt": asked(f"write {letter}")} for letter in LETTERS]),
        processing_class=tokenizer,
    )
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "rewards/judge/mean" in entry]
    assert len(steps) == 20
    rewards = [entry["rewards/judge/mean"] for entry in steps]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2
    assert all(entry["judge/unscored"] == 0 for entry in steps[:3])


MEMBERS, PER_PROCESS = 4, 6
TEXTS = ["a b", "a a", "b b", "a c d e", "b", "a", "c a", "d", "a b c", "e f", "g a", "h"]
"""Three groups, of which the second has members in both processes."""


async def counted(messages: list[Message], schema: Message) -> str:
    ASKED.append(1)
    return await by_letters_and_position_here(messages, schema)


ASKED: list[int] = []


def in_a_process(rank: int, folder: str) -> tuple[list[float | None], int, str]:
    """What one of two processes of a run gets for its half, how often it asked, and the error of a batch that only the
    second one cannot read."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    own = range(rank * PER_PROCESS, (rank + 1) * PER_PROCESS)
    reward = reward_func(gavel.Judge(counted, orders=2))
    rewards = reward([asked(f"write {n // MEMBERS}") for n in own], [said(TEXTS[n]) for n in own])
    with pytest.raises(JudgeError) as raised:
        reward_func("constant", group_by="task" if rank else None)(["one"] * 2, ["a", "b"])
    distributed.barrier()  # threads of a group that is still open may abort a process that ends after the other
    distributed.destroy_process_group()
    return rewards, len(ASKED), str(raised.value)


@pytest.mark.slow
def test_groups_that_are_split_over_two_processes_are_judged_whole(tmp_path: Path):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        found = pool.map(in_a_process, range(2), [str(tmp_path)] * 2, timeout=HANG_SECONDS)
        (first, asked_first, told_first), (second, asked_second, told_second) = found
    for start in range(0, len(TEXTS), MEMBERS):
        members = [
            gavel.Trajectory(messages_and_choices=[*asked(f"write {start // MEMBERS}"), *said(text)])
            for text in TEXTS[start : start + MEMBERS]
        ]
        direct = run(gavel.Judge(counted, orders=2).score(gavel.TrajectoryGroup(members)))
        assert [member.reward for member in direct] == [*first, *second][start : start + MEMBERS]
    assert asked_first + asked_second == len(ASKED)  # each group by one process
    assert "no column 'task'" in told_first  # the second one's error, and both were told
    assert "no column 'task'" in told_second


@pytest.mark.slow
def test_the_page_s_program_trains(tmp_path: Path):
    model, tokenizer = tiny_policy()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    short = ", ".join(f"{name}={value!r}" for name, value in SHORT.items())
    shown = program("TRL").replace("Qwen/Qwen3-0.6B", str(tmp_path / "model"))
    names: dict[str, Any] = {"__name__": "from_the_page"}
    exec(compile(shown.replace('"runs/judged"', f"{str(tmp_path)!r}, {short}"), "adapters.md", "exec"), names)
    assert any("rewards/judge/mean" in entry for entry in names["trainer"].state.log_history)


def test_the_page_s_function_is_one_that_axolotl_takes():
    reward = run_program("Axolotl and Unsloth")["reward"]
    assert len(inspect.signature(reward).parameters) >= 2
    assert not inspect.iscoroutinefunction(reward)
    assert reward(prompts=["one", "one"], completions=["It is done.", ""], completion_ids=[[1], []]) == [1.0, 0.0]


@pytest.mark.slow
async def test_async_grpo_takes_it_and_leaves_out_what_has_no_score(endpoint: Endpoint):
    endpoint.script = [share_of_a]
    group = RolloutGroup(
        prompts=[[{"role": "user", "content": "write"}]] * 3,
        reward_kwargs={"level": [1, 1, 1]},
        completions=[[{"role": "assistant", "content": text}] for text in ("a b", "a", "b")],
        completions_ids=[[1]] * 3,
        completions_sequences=[[TrainingSequence([1], [1], [0.0], 0)] for _ in range(3)],
        tool_call_counts=[0] * 3,
        tool_failure_counts=[0] * 3,
        model_version=0,
        group_id=0,
        env_rewards=[],
        rollout_rewards=[],
    )
    reward = pickle.loads(
        pickle.dumps(gavel.integrations.trl.reward_func(gavel.JudgeConfig(models=MODEL, params=endpoint.params)))
    )
    worker = SimpleNamespace(
        reward_funcs=[reward], reward_func_names=["judge"], _env_reward_types=[], _provides_rollout_reward=False
    )
    samples = await _AsyncRolloutLoop._score_group(worker, group)  # type: ignore[arg-type]
    assert [sample.metrics["rewards/judge"] for sample in samples] == [0.5, 1.0, 0.0]
    assert samples[0].advantage == pytest.approx(0)
    assert samples[1].advantage > 1
    endpoint.script = [lambda request: says("I cannot tell.")]
    assert [sample.advantage for sample in await _AsyncRolloutLoop._score_group(worker, group)] == [0, 0, 0]  # type: ignore[arg-type]
