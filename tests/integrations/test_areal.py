"""AReaL's group of episodes. Workflows return the tensors of areal 1.0.4's RLVRWorkflow; the package needs GPUs to run.

`concat_padded_tensors` does what AReaL's does with tensors of two dimensions.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gavel.integrations._rewards import Unscored
from gavel.integrations.areal import arun_episode
from gavel.scenarios.errors import JudgeError
from gavel.scenarios.truth import truth_of
from tests.integrations.adapters_page import run, stand_in
from tests.integrations.released_source import definitions, executed, fields, parameters
from tests.integrations.words import END, Words
from tests.integrations.worth_judge import WorthJudge

Tensors = dict[str, torch.Tensor]


def concat_padded_tensors(parts: list[Tensors]) -> Tensors:
    longest = max(part["attention_mask"].shape[1] for part in parts)

    def padded(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.dim() < 2 else torch.nn.functional.pad(tensor, (0, longest - tensor.shape[1]))

    return {name: torch.cat([padded(part[name]) for part in parts]) for name in parts[0]}


@pytest.fixture(autouse=True)
def context(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """AReaL's modules, as far as the hook uses them; the result is the context that workflows run in."""
    found = SimpleNamespace(is_eval=False)
    stand_in(monkeypatch, "areal", workflow_context=SimpleNamespace(get=lambda: found))
    stand_in(monkeypatch, "areal.utils.data", concat_padded_tensors=concat_padded_tensors)
    return found


class Workflow:
    """Answers with a script, as RLVRWorkflow's `arun_episode` does with what is sampled. None = rejected."""

    def __init__(self, *answers: str | None) -> None:
        self.tokenizer, self.answers = Words(), list(answers)

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Tensors | None:
        if (answer := self.answers.pop(0)) is None:
            return None
        prompt, said = self.tokenizer.encode("what is it worth?"), [*self.tokenizer.encode(answer), END]
        size = len(prompt) + len(said)
        mask = [0] * len(prompt) + [1] * len(said)
        tensors = {
            "input_ids": torch.tensor([*prompt, *said], dtype=torch.int32),
            "loss_mask": torch.tensor(mask, dtype=torch.int32),
            "attention_mask": torch.ones(size, dtype=torch.bool),
            "rewards": torch.tensor(7.0),
        }
        return {name: tensor.unsqueeze(0) for name, tensor in tensors.items()}


ROW = {"messages": [{"role": "user", "content": "What is it worth?"}], "answer": "42"}


def rounded(tensors: Tensors | None) -> list[float]:
    assert tensors is not None
    return [round(float(reward), 6) for reward in tensors["rewards"]]


async def test_the_episodes_of_a_row_get_their_scores():
    judge = WorthJudge()
    hook = arun_episode(judge, group_size=3)
    tensors = await hook(Workflow("worth 90", "it is worth 20", "worth 50"), None, ROW)
    assert rounded(tensors) == [0.9, 0.2, 0.5]
    assert tensors is not None
    assert tensors["loss_mask"].sum(1).tolist() == [3, 5, 3]
    assert truth_of(judge.groups[0]).reference == "42"
    assert [message["content"] for message in judge.groups[0].trajectories[0].messages()] == [
        "What is it worth?",
        "worth 90",
    ]


async def test_a_row_without_messages_shows_the_prompt_s_tokens():
    judge = WorthJudge()
    await arun_episode(judge, group_size=2)(Workflow("worth 9", "worth 2"), None, {"question": "?"})
    assert [(m["role"], m["content"]) for m in judge.groups[0].trajectories[0].messages()] == [
        ("user", "what is it worth?"),
        ("assistant", "worth 9"),
    ]


async def test_an_episode_without_a_score_is_masked():
    hook = arun_episode(WorthJudge(), group_size=3, unscored="member")
    tensors = await hook(Workflow("worth 90", "worth 99 withheld", "worth 10"), None, ROW)
    assert rounded(tensors) == [0.9, 0.5, 0.1]
    assert tensors is not None
    assert [bool(any(mask)) for mask in tensors["loss_mask"].tolist()] == [True, False, True]


REJECTED: list[tuple[Unscored, tuple[str | None, ...]]] = [
    ("group", ("worth 90", "worth 99 withheld", "worth 10")),
    ("member", ("worth 90", None, "worth 10")),
    ("raise", ("worth 90", "worth 90", "worth 90")),
]


@pytest.mark.parametrize(("unscored", "answers"), REJECTED, ids=["a score is missing", "rejected", "all alike"])
async def test_a_group_that_cannot_be_compared_is_rejected(unscored: Unscored, answers: tuple[str | None, ...]):
    hook = arun_episode(WorthJudge(), group_size=3, unscored=unscored)
    assert await hook(Workflow(*answers), None, ROW) is None


async def test_evaluation_runs_one_episode_with_its_own_reward(context: SimpleNamespace):
    context.is_eval = True
    assert rounded(await arun_episode(WorthJudge(), group_size=3)(Workflow("worth 90"), None, ROW)) == [7.0]


async def test_a_workflow_that_gives_no_tensors_is_refused():
    class Agent:
        tokenizer = None

        async def arun_episode(self, engine: Any, data: Any) -> dict[str, Any]:
            return {"id": "a completion"}

    with pytest.raises(JudgeError, match="RLVRWorkflow"):
        await arun_episode(WorthJudge(), group_size=2)(Agent(), None, ROW)


async def test_the_page_s_workflow_judges(monkeypatch: pytest.MonkeyPatch):
    class RLVRWorkflow(Workflow):
        def __init__(self, answers: list[str]) -> None:
            super().__init__(*answers)

    stand_in(monkeypatch, "areal.api", RolloutWorkflow=object)
    stand_in(monkeypatch, "areal.workflow.rlvr", RLVRWorkflow=RLVRWorkflow)
    workflow = run("AReaL")["JudgedWorkflow"](group_size=2, answers=["It is 9 days old.", " "])
    assert rounded(await workflow.arun_episode(None, ROW)) == [1.0, 0.0]


@pytest.mark.adapters
def test_the_release_has_the_signatures_that_the_hook_relies_on():
    workflow = definitions("areal", "areal/api/workflow_api.py")["RolloutWorkflow.arun_episode"]
    assert parameters(workflow) == ["self", "engine", "data"]
    context = definitions("areal", "areal/infra/workflow_context.py")
    assert "is_eval" in fields(context["WorkflowContext"])
    assert parameters(context["get"]) == []
    single = definitions("areal", "areal/workflow/rlvr.py")
    assert "tokenizer" in parameters(single["RLVRWorkflow.__init__"])


@pytest.mark.adapters
async def test_the_release_s_own_padding_and_normalization_take_the_group(monkeypatch: pytest.MonkeyPatch):
    names = ("get_batch_size", "is_multi_modal_key", "_pad_cat_dim0", "concat_padded_tensors", "Normalization")
    scope = {"np": np, "torch": torch, "F": torch.nn.functional, "dist": torch.distributed}
    data = executed("areal", "areal/utils/data.py", *names, **scope)
    stand_in(monkeypatch, "areal.utils.data", concat_padded_tensors=data["concat_padded_tensors"])
    hook = arun_episode(WorthJudge(), group_size=3, unscored="member")
    tensors = await hook(Workflow("worth 90", "it is worth 99 withheld", "worth 10"), None, ROW)
    assert rounded(tensors) == [0.9, 0.5, 0.1]
    assert tensors is not None
    assert tensors["input_ids"].shape == tensors["loss_mask"].shape == tensors["attention_mask"].shape
    settings = SimpleNamespace(
        mean_level="group", mean_leave1out=False, std_level=None, std_unbiased=True, group_size=3, eps=1e-5
    )
    advantages = data["Normalization"](settings)(tensors["rewards"])
    assert advantages.tolist() == pytest.approx([0.4, 0.0, -0.4], abs=1e-6)
