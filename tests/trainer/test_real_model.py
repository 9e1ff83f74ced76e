"""The real parts, where they are installed (`make real-parts`): SmolLM2 from end to end, and Qwen's vocabulary."""

import json
import os
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, normalizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import LoraSettings, TrainConfig
from gavel.trainer.embedded.small_model import SMALL_MODEL, SmallModelError, small_model_path
from gavel.trainer.model import TrainableModel
from gavel.trainer.policy.chat_format import chat_renderer
from tests.limits import HANG_SECONDS
from tests.trainer.conftest import OPENING, TOOLS, a_group, a_model, full_logprobs, registered, tiny_model

pytestmark = [pytest.mark.real, pytest.mark.slow]

NATS = {"float32": 1e-3, "bfloat16": 0.75}
"""Largest difference of a log-prob of this model: a merged export and its policy."""
MEAN_NATS = {"float32": 1e-4, "bfloat16": 0.1}


@pytest.fixture(scope="module")
def source() -> Path:
    try:
        return small_model_path()
    except SmallModelError as error:
        pytest.skip(f"NO REAL MODEL, SO THIS TEST DID NOT RUN: {error}")


def running(runs: Path) -> AbstractAsyncContextManager[tuple[TrainableModel, LocalBackend]]:
    model = a_model("writer", "real", SMALL_MODEL, lora=LoraSettings(rank=8))
    return registered(runs, model, slots=8, max_context=128)


async def rollouts(model: TrainableModel, count: int = 4) -> TrajectoryGroup:
    scenario = find_scenario("one_sentence")
    task = scenario.tasks("train")[0]
    group = await TrajectoryGroup(rollout(model, scenario, task, max_tokens=24, seed=n) for n in range(count))
    for trajectory in group:
        trajectory.reward = 1 / (1 + len(str(trajectory.messages()[-1]["content"])))
    return group


def sampled(trajectory: Trajectory) -> tuple[list[int], list[int], list[float]]:
    choice: Any = trajectory.messages_and_choices[-1]
    logprobs = (choice.model_extra or {}).get("token_logprobs")
    if logprobs is None:
        logprobs = [token.logprob for token in choice.logprobs.content]
    return choice.prompt_token_ids, choice.token_ids, logprobs


def difference(directory: Path, trajectories: list[Trajectory]) -> torch.Tensor:
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype="auto").eval()
    found: list[torch.Tensor] = []
    for prompt, said, logprobs in map(sampled, trajectories):
        plain = full_logprobs(model, [*prompt, *said])[len(prompt) - 1 :]
        found.append((plain - torch.tensor(logprobs)).abs())
    return torch.cat(found)


async def test_it_samples_learns_publishes_resumes_and_is_exported(tmp_path: Path, source: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(source)
    async with running(tmp_path) as (model, _):
        group = await rollouts(model)
        prompt, said, _ = sampled(group.trajectories[0])
        messages = group.trajectories[0].messages()[:-1]
        plain = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert prompt == plain
        assert "".join(tokenizer.decode(said, skip_special_tokens=True).split())
        assert difference(source, list(group)).max() < NATS["float32"]
        for _ in range(2):
            result = await model.train([await rollouts(model)], TrainConfig(learning_rate=1e-3))
            assert result.trained
            assert result.metrics["publish_gap"] < 1e-3
        before = list(await rollouts(model))
    async with running(tmp_path) as (again, _):
        assert await again.get_step() == 2
        after = list(await rollouts(again))
        assert [sampled(one)[1] for one in after] == [sampled(other)[1] for other in before]
        assert difference(source, after).max() > NATS["float32"]  # it has learnt
        for dtype, bound in NATS.items():
            gaps = difference(await again.export("merged", dtype=dtype), after)
            print(f"{dtype}: mean {gaps.mean():.2g}, max {gaps.max():.2g} nats over {len(gaps)} tokens")
            assert gaps.max() < bound
            assert gaps.mean() < MEAN_NATS[dtype]
        assert (await again.train([await rollouts(again)], TrainConfig(learning_rate=1e-3))).step == 3


def test_the_demo_leaves_its_figures_and_goes_on_where_it_was(tmp_path: Path, source: Path) -> None:
    command = [sys.executable, "-m", "gavel", "demo", "--real", "--steps", "1"]
    environment = {**os.environ, "GAVEL_RUNS": str(tmp_path / "runs")}
    environment.pop("GAVEL_JUDGE_MODEL", None)
    told = []
    for _ in range(2):
        given = {"cwd": tmp_path, "env": environment, "text": True, "timeout": HANG_SECONDS}
        done = subprocess.run(command, capture_output=True, **given)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    assert "likelihood judge (the frozen base, a word count)" in told[0]
    assert "This run is finished" in told[1]
    (file,) = tmp_path.glob("runs/demo/*/summary.json")
    summary = json.loads(file.read_text())
    assert (summary["judge"], summary["heldout_tasks"]) == ("likelihood", 64)
    assert "The same task, before and after" in (file.parent / "report.html").read_text()


END, START, CALL, CALLED = 151_645, 151_644, 151_657, 151_658
ASSISTANT, NEWLINE = 77_091, 198


QWEN_HEAD = 151_936
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
_PLAIN = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """With the published ids."""
    try:
        files = distribution("dashscope").files or ()
    except PackageNotFoundError:
        pytest.skip("NO QWEN VOCABULARY (dashscope; make real-parts), SO THIS TEST DID NOT RUN")
    (file,) = [Path(str(each.locate())) for each in files if each.name == "qwen.tiktoken"]
    tokenizer = TikTokenConverter(str(file), _SPLIT, extra_special_tokens=list(_SPECIAL)).converted()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in _PLAIN])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )


@pytest.fixture
def base(tokenizer: Any, tmp_path: Path) -> Path:
    small = tiny_model(vocab_size=QWEN_HEAD, max_position_embeddings=2048, initializer_range=0.02, eos_token_id=END)
    small.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def test_a_conversation_with_tools_is_rendered_read_and_continued_on_these_ids(tokenizer: Any) -> None:
    assert tokenizer.encode("Hello, world!") == [9707, 11, 1879, 0]
    assert tokenizer.encode("<|im_end|><tool_call></think>") == [END, CALL, 151_668]
    assert len(tokenizer) == 151_669
    renderer = chat_renderer(tokenizer, "qwen3", "qwen3", "mine", {})
    tools: Any = TOOLS
    prompt = list(renderer.render_ids(OPENING, tools=tools, add_generation_prompt=True))
    assert prompt[0] == START
    assert prompt[-3:] == [START, ASSISTANT, NEWLINE]
    assert END in renderer.get_stop_token_ids()
    said = '<tool_call>\n{"name": "look_up_order", "arguments": {"order_id": "7890"}}\n</tool_call>'
    sampled = [*tokenizer.encode(said), END]
    assert sampled[0] == CALL
    assert CALLED in sampled
    read: Any = renderer.parse_response(sampled, tools=tools)
    assert [call.name for call in read.tool_calls] == ["look_up_order"]
    answer: Any = [{"role": "tool", "tool_call_id": "c1", "content": '{"days": 10}'}]
    bridged: Any = renderer.bridge_to_next_turn(prompt, sampled, answer, tools=tools)
    following = list(bridged.token_ids)
    assert following[: len(prompt) + len(sampled)] == [*prompt, *sampled]
    assert following[-3:] == [START, ASSISTANT, NEWLINE]
    assert 151_665 in following  # <tool_response>


async def test_the_endpoint_samples_and_trains_over_the_whole_vocabulary(base: Path, tmp_path: Path) -> None:
    qwen = a_model("qwen", "real", base_model=str(base), renderer="qwen3", lora=LoraSettings(rank=4))
    async with registered(tmp_path / "runs", qwen, slots=8, max_context=1024) as (model, _):
        group = await a_group(model, [0.0, 1.0, 2.0, 3.0])
        result = await model.train([group], TrainConfig(learning_rate=1e-3))
    choice = group.trajectories[0].messages_and_choices[2]
    ids = choice.token_ids
    assert max(ids) < QWEN_HEAD
    assert any(identifier > 50_000 for identifier in ids)  # a random model samples the whole head
    assert choice.prompt_token_ids[-3:] == [START, ASSISTANT, NEWLINE]
    assert result.trained
    assert result.metrics["publish_gap"] < 1e-3
