"""One suite over the hooks of trainers that need GPUs to run: AReaL, NeMo RL, SkyRL and slime.

Each is called as its trainer calls it, with that trainer's types as far as the hook uses them. What the releases
themselves do with the answers is checked at the end (`make test-adapters`).
"""

import copy
import enum
from argparse import Namespace
from collections import defaultdict, namedtuple
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from gavel.integrations import areal, nemo, skyrl, slime
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.truth import truth_of
from tests.integrations.adapters_page import run, stand_in
from tests.integrations.judges import WorthJudge
from tests.integrations.released_source import definitions, executed, fields, parameters
from tests.integrations.words import END, Words

Tensors = dict[str, torch.Tensor]


class Found(NamedTuple):
    """What a trainer has after the hook. Both empty: the group is rejected."""

    rewards: list[float]
    is_trained: list[bool]
    """By the loss mask; where a trainer has none, by the advantage."""


def concat_padded_tensors(parts: list[Tensors]) -> Tensors:
    """As AReaL's does with tensors of two dimensions."""

    def joined(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) if rows[0].dim() else torch.stack(rows)

    return {name: joined([row for part in parts for row in part[name]]) for name in parts[0]}


@pytest.fixture(autouse=True)
def context(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The context that AReaL's workflows run in."""
    found = SimpleNamespace(is_eval=False)
    stand_in(monkeypatch, "areal", workflow_context=SimpleNamespace(get=lambda: found))
    stand_in(monkeypatch, "areal.utils.data", concat_padded_tensors=concat_padded_tensors)
    return found


class Workflow:
    """Answers with a script, with the tensors of areal 1.0.4's RLVRWorkflow. None = rejected."""

    def __init__(self, *answers: str | None) -> None:
        self.tokenizer, self.answers = Words(), list(answers)

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Tensors | None:
        if (answer := self.answers.pop(0)) is None:
            return None
        prompt, said = self.tokenizer.encode("what is it worth?"), [*self.tokenizer.encode(answer), END]
        mask = [0] * len(prompt) + [1] * len(said)
        tensors = {
            "input_ids": torch.tensor([*prompt, *said], dtype=torch.int32),
            "loss_mask": torch.tensor(mask, dtype=torch.int32),
            "attention_mask": torch.ones(len(mask), dtype=torch.bool),
            "rewards": torch.tensor(7.0),
        }
        return {name: tensor.unsqueeze(0) for name, tensor in tensors.items()}


def of_tensors(tensors: Tensors | None) -> Found:
    if tensors is None:
        return Found([], [])
    rewards = [round(float(reward), 6) for reward in tensors["rewards"]]
    return Found(rewards, [bool(any(mask)) for mask in tensors["loss_mask"].tolist()])


async def play_areal(judge: Any, prompts: Sequence[str], answers: Sequence[str | None], **options: Any) -> Found:
    hook = areal.arun_episode(judge, group_size=len(answers), **options)
    row = {"messages": [{"role": "user", "content": prompts[0]}], "answer": "42"}
    return of_tensors(await hook(Workflow(*answers), None, row))


def log(prompt: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def step(hook: Any, logs: list[Any], metadata: list[Any]) -> list[float]:
    observations, kept, stops, rewards, terminateds, answers = hook(logs, metadata)
    assert terminateds.dtype == torch.bool
    assert terminateds.all()
    assert len(observations) == len(kept) == len(stops) == len(answers) == len(rewards) == len(logs)
    assert {observation["role"] for observation in observations} == {"environment"}
    return [round(float(reward), 6) for reward in rewards]


async def play_nemo(judge: Any, prompts: Sequence[str], answers: Sequence[str], **options: Any) -> Found:
    hook = nemo.step(judge, group_size=prompts.count(prompts[0]), **options)
    logs = [log(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    rewards = step(hook, logs, [{"ground_truth": "42"}] * len(logs))
    mean = {p: np.mean([r for q, r in zip(prompts, rewards, strict=True) if q == p]) for p in prompts}
    return Found(rewards, [abs(r - mean[p]) > 1e-6 for p, r in zip(prompts, rewards, strict=True)])


@dataclass
class TrajectoryID:
    instance_id: str
    repetition_id: int


@dataclass
class BatchMetadata:
    global_step: int
    training_phase: str


class Generator:
    """Answers with a script, with the fields of skyrl 0.3.0; a tool's output, between slashes, is masked."""

    def __init__(self, words: Words, *answers: str, **more: Any) -> None:
        self.words, self.answers, self.more, self.name = words, answers, more, "scripted"

    async def generate(self, input_batch: dict[str, Any]) -> dict[str, Any]:
        ids, masks = [], []
        for answer in self.answers:
            parts = [self.words.encode(part) for part in answer.split("/")]
            ids.append([token for part in parts for token in part] + [END])
            masks.append([n % 2 ^ 1 for n, part in enumerate(parts) for _ in part] + [1])
        size = len(self.answers)
        return {
            "prompt_token_ids": [[1]] * size,
            "response_ids": ids,
            "rewards": [7.0] * size,
            "loss_masks": masks,
            "stop_reasons": ["stop"] * size,
            "rollout_metrics": {"generate/n": size},
            "rollout_logprobs": None,
            **self.more,
        }


def batch(*uids: str, phase: str = "train", **more: Any) -> dict[str, Any]:
    return {
        "prompts": [[{"role": "user", "content": uid}] for uid in uids],
        "env_classes": ["desk"] * len(uids),
        "env_extras": [{"reward_spec": {"method": "rule", "ground_truth": "42"}}] * len(uids),
        "sampling_params": None,
        "trajectory_ids": [TrajectoryID(uid, number) for number, uid in enumerate(uids)],
        "batch_metadata": BatchMetadata(1, phase),
        **more,
    }


async def play_skyrl(judge: Any, prompts: Sequence[str], answers: Sequence[str], **options: Any) -> Found:
    words = Words()
    output = await skyrl.get_generator(Generator(words, *answers), words, judge, **options).generate(batch(*prompts))
    is_trained = [any(mask) for mask in output["loss_masks"]]
    assert [len(mask) for mask in output["loss_masks"]] == [len(ids) for ids in output["response_ids"]]
    assert output["rollout_metrics"] == {"generate/n": len(answers), "judge/unscored": is_trained.count(False)}
    return Found(output["rewards"], is_trained)


class Status(enum.Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """What the hook reads and writes of `slime/utils/types.py`."""

    response: str
    prompt: str | list[dict[str, str]] = "What is it worth?"
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    remove_sample: bool = False
    status: Status = Status.COMPLETED
    metadata: dict[str, Any] = field(default_factory=dict)


async def rewarded(hook: Any, samples: list[Any]) -> Found:
    """How slime calls it (`batched_async_rm`)."""
    rewards = await hook(Namespace(group_rm=True), samples)
    return Found(rewards, [not sample.remove_sample for sample in samples])


async def play_slime(judge: Any, prompts: Sequence[str], answers: Sequence[str], **options: Any) -> Found:
    samples = [Sample(answer, prompt, label="42") for prompt, answer in zip(prompts, answers, strict=True)]
    return await rewarded(slime.custom_rm(judge, **options), samples)


HOOKS: dict[str, Callable[..., Awaitable[Found]]] = {
    "areal": play_areal,
    "nemo": play_nemo,
    "skyrl": play_skyrl,
    "slime": play_slime,
}
hooks = pytest.mark.parametrize("hook", HOOKS)
WITHHELD = ("worth 90", "worth 99 withheld", "worth 10")
ASKED = "What is it worth?"


@hooks
async def test_the_attempts_at_a_prompt_get_their_scores_and_the_judge_sees_them_with_the_reference(hook: str):
    judge = WorthJudge()
    found = await HOOKS[hook](judge, [ASKED] * 3, ["worth 90", "it is worth 20", "worth 52"])
    assert found == Found([0.9, 0.2, 0.52], [True] * 3)
    (group,) = judge.groups
    assert truth_of(group).reference == "42"
    shown = [[(message["role"], message["content"]) for message in member.messages()] for member in group]
    assert shown[1] == [("user", ASKED), ("assistant", "it is worth 20")]


@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook != "areal"])
async def test_prompts_of_one_batch_are_judged_apart_whatever_their_order(hook: str):
    judge = WorthJudge()
    found = await HOOKS[hook](judge, list("abab"), ["worth 90", "worth 11", "worth 20", "worth 33"])
    assert found.rewards == [0.9, 0.11, 0.2, 0.33]
    assert [len(group) for group in judge.groups] == [2, 2]


@hooks
async def test_an_attempt_without_a_score_is_not_trained_on_or_an_error(hook: str):
    play = partial(HOOKS[hook], WorthJudge(), [ASKED] * 3, WITHHELD)
    assert await play(unscored="member") == Found([0.9, 0.5, 0.1], [True, False, True])
    found = await play(unscored="group")
    assert not any(found.is_trained + found.rewards)
    with pytest.raises(JudgeError, match="scored 2 of 3"):
        await play(unscored="raise")


class NoTensors:
    tokenizer = None

    async def arun_episode(self, engine: Any, data: Any) -> dict[str, Any]:
        return {"id": "a completion"}


def generate(changed: dict[str, Any] | None = None, **more: Any) -> Awaitable[Any]:
    words = Words()
    generator = skyrl.get_generator(Generator(words, "worth 1", "worth 2", **more), words, WorthJudge())
    return generator.generate(batch("a", "a", **(changed or {})))


def reward(samples: Any, *, of_groups: bool = True) -> Awaitable[Any]:
    return slime.custom_rm(WorthJudge())(Namespace(group_rm=of_groups), samples)


@pytest.mark.parametrize(
    ("misuse", "remedy"),
    [
        (lambda: areal.arun_episode(WorthJudge(), group_size=2)(NoTensors(), None, {}), "RLVRWorkflow"),
        (lambda: step(nemo.step(WorthJudge(), group_size=2), [log("a", "b")], [None]), "num_generations_per_prompt"),
        (lambda: generate(is_last_step=[True, True]), "step_wise_trajectories"),
        (lambda: generate({"trajectory_ids": None}), "n > 1"),
        (lambda: reward(Sample("worth 1"), of_groups=False), "--group-rm"),
        (lambda: reward([[Sample("worth 1"), Sample("worth 2")]]), "--group-rm"),
        (lambda: reward([Sample("worth 90", label="4"), Sample("worth 20", label="5")]), "not comparable"),
    ],
)
async def test_what_holds_no_groups_says_which_setting_is_missing(misuse: Any, remedy: str):
    with pytest.raises(JudgeError, match=remedy):
        await misuse()


async def test_areal_rejects_a_group_with_a_rejected_episode_and_shows_tokens_where_a_row_has_no_messages():
    assert await play_areal(WorthJudge(), [ASKED], ["worth 90", None], unscored="member") == Found([], [])
    judge = WorthJudge()
    await areal.arun_episode(judge, group_size=2)(Workflow("worth 9", "worth 2"), None, {"question": "?"})
    assert [message["content"] for message in judge.groups[0].trajectories[0].messages()] == [ASKED.lower(), "worth 9"]


async def test_evaluation_keeps_its_own_rewards(context: SimpleNamespace):
    context.is_eval = True
    kept = await areal.arun_episode(WorthJudge(), group_size=3)(Workflow("worth 90"), None, {})
    assert of_tensors(kept).rewards == [7.0]
    words = Words()
    generator = skyrl.get_generator(Generator(words, "worth 1"), words, WorthJudge())
    assert (await generator.generate(batch("a", phase="eval")))["rewards"] == [7.0]
    assert (copy.copy(generator).name, hasattr(generator, "missing")) == ("scripted", False)


async def test_what_tools_answered_is_shown_between_the_policy_s_turns():
    words, judge = Words(), WorthJudge()
    inner = Generator(words, "look it up /it costs 5/ worth 50", "worth 10")
    await skyrl.get_generator(inner, words, judge).generate(batch("a", "a"))
    looked = [*log("a", "look"), {"role": "environment", "content": "it costs 5"}, log("a", "worth 5")[1]]
    step(nemo.step(judge, group_size=2), [looked, log("a", "worth 1")], [None, None])
    for group in judge.groups:
        roles = [message["role"] for message in group.trajectories[0].messages()]
        assert roles == ["user", "assistant", "user", "assistant"]


async def test_slime_s_aborted_sample_costs_itself_alone_and_metadata_tells_why():
    group = [Sample("worth 90"), Sample("worth", status=Status.ABORTED), Sample("worth 10")]
    assert await rewarded(slime.custom_rm(WorthJudge()), group) == Found([0.9, 0.5, 0.1], [True, False, True])
    assert group[0].metadata["judge"]["explanation"] == "worth 90"
    whole = [Sample(text, status=Status.ABORTED) for text in ("wor", "wo")]
    assert await rewarded(slime.custom_rm(WorthJudge()), whole) == Found([0.0, 0.0], [False, False])
    withheld = [Sample(text) for text in WITHHELD]
    await rewarded(slime.custom_rm(WorthJudge()), withheld)
    assert withheld[1].metadata["judge"]["reason"] == "its votes were lost"


FIELDS = ("observations", "metadata", "next_stop_strings", "rewards", "terminateds", "answers")
"""Of what a step returns, in NeMo RL's order."""


async def test_the_page_s_programs_judge(monkeypatch: pytest.MonkeyPatch):
    class RLVRWorkflow(Workflow):
        def __init__(self, answers: list[str]) -> None:
            super().__init__(*answers)

    class BasePPOExp:
        def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Any:
            return Generator(tokenizer, "It is 9 days old.", " ")

    stand_in(monkeypatch, "areal.api", RolloutWorkflow=object)
    stand_in(monkeypatch, "areal.workflow.rlvr", RLVRWorkflow=RLVRWorkflow)
    stand_in(monkeypatch, "ray", remote=lambda kind: kind)
    parts = {"EnvironmentInterface": object, "EnvironmentReturn": namedtuple("EnvironmentReturn", FIELDS)}
    stand_in(monkeypatch, "nemo_rl.environments.interfaces", **parts)
    stand_in(monkeypatch, "skyrl.train.entrypoints.main_base", BasePPOExp=BasePPOExp)
    workflow = run("AReaL")["JudgedWorkflow"](group_size=2, answers=["It is 9 days old.", " "])
    row = {"messages": [{"role": "user", "content": ASKED}]}
    assert of_tensors(await workflow.arun_episode(None, row)).rewards == [1.0, 0.0]
    environment = run("NeMo RL")["JudgeEnvironment"]({"group_size": 2})
    assert environment.step([log("a", "It is done."), log("a", "")], [None, None]).rewards.tolist() == [1.0, 0.0]
    assert environment.global_post_process_and_metrics("batch") == ("batch", {})
    generator = run("SkyRL")["JudgedExp"]().get_generator(None, Words(), None)
    assert (await generator.generate(batch("a", "a")))["rewards"] == [1.0, 0.0]
    assert (await rewarded(run("slime")["reward"], [Sample("It is done."), Sample("")])).rewards == [1.0, 0.0]


FILES = "skyrl/train/"


@pytest.mark.adapters
def test_the_releases_have_the_signatures_and_fields_that_the_hooks_rely_on():
    workflow = definitions("areal", "areal/api/workflow_api.py")["RolloutWorkflow.arun_episode"]
    assert parameters(workflow) == ["self", "engine", "data"]
    context = definitions("areal", "areal/infra/workflow_context.py")
    assert "is_eval" in fields(context["WorkflowContext"])
    assert "tokenizer" in parameters(definitions("areal", "areal/workflow/rlvr.py")["RLVRWorkflow.__init__"])
    base = definitions("skyrl", f"{FILES}generators/base.py")
    assert parameters(base["GeneratorInterface.generate"]) == ["self", "input_batch"]
    assert set(batch("a")) == fields(base["GeneratorInput"])
    used = {"response_ids", "rewards", "loss_masks", "stop_reasons", "rollout_metrics", "is_last_step"}
    assert used <= fields(base["GeneratorOutput"])
    assert fields(base["TrajectoryID"]) == {"instance_id", "repetition_id"}
    assert "training_phase" in fields(base["BatchMetadata"])
    experiment = definitions("skyrl", f"{FILES}entrypoints/main_base.py")["BasePPOExp.get_generator"]
    assert parameters(experiment) == ["self", "cfg", "tokenizer", "inference_engine_client"]


@pytest.mark.adapters
async def test_areal_s_own_padding_and_normalization_take_the_group(monkeypatch: pytest.MonkeyPatch):
    names = ("get_batch_size", "is_multi_modal_key", "_pad_cat_dim0", "concat_padded_tensors", "Normalization")
    scope = {"np": np, "torch": torch, "F": torch.nn.functional, "dist": torch.distributed}
    data = executed("areal", "areal/utils/data.py", *names, **scope)
    stand_in(monkeypatch, "areal.utils.data", concat_padded_tensors=data["concat_padded_tensors"])
    hook = areal.arun_episode(WorthJudge(), group_size=3, unscored="member")
    tensors: Any = await hook(Workflow(*WITHHELD), None, {"messages": [{"role": "user", "content": ASKED}]})
    levels = {"mean_level": "group", "mean_leave1out": False, "std_level": None, "std_unbiased": True}
    advantages = data["Normalization"](SimpleNamespace(**levels, group_size=3, eps=1e-5))(tensors["rewards"])
    assert advantages.tolist() == pytest.approx([0.4, 0.0, -0.4], abs=1e-6)


@pytest.mark.adapters
@pytest.mark.parametrize("unscored", ["group", "member"])
async def test_skyrl_accepts_the_output_and_a_masked_trajectory_has_no_advantage(unscored: str):
    words = Words()
    inner = Generator(words, *WITHHELD, "worth 40", "worth 60")
    generator = skyrl.get_generator(inner, words, WorthJudge(), unscored=unscored)  # type: ignore[arg-type]
    output = await generator.generate(batch(*"aaabb"))
    checks = executed("skyrl", f"{FILES}utils/trainer_utils.py", "validate_generator_output", np=np, logger=None)
    checks["validate_generator_output"](5, output)
    estimators = "skyrl/backends/skyrl_train/utils/ppo_utils.py"
    scope = {"torch": torch, "np": np, "defaultdict": defaultdict}
    grpo = executed("skyrl", estimators, "compute_grpo_outcome_advantage", **scope)["compute_grpo_outcome_advantage"]
    longest = max(map(len, output["response_ids"]))
    rewards, mask = torch.zeros(5, longest), torch.zeros(5, longest)
    for row, (reward, trained) in enumerate(zip(output["rewards"], output["loss_masks"], strict=True)):
        rewards[row, len(trained) - 1], mask[row, : len(trained)] = reward, torch.tensor(trained).float()
    advantages, _ = grpo(rewards, mask, np.array(list("aaabb")), grpo_norm_by_std=False)
    expected = {"group": [0.0, 0.0, 0.0, -0.1, 0.1], "member": [0.4, 0.0, -0.4, -0.1, 0.1]}[unscored]
    assert [float(row.sum() / max(int((row != 0).sum()), 1)) for row in advantages] == pytest.approx(expected, abs=1e-6)
