import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the hub's library is imported

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from openai.types.chat.chat_completion import Choice
from transformers import Qwen3Config, Qwen3ForCausalLM

from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import LoraSettings, PolicySettings
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.engines.protocol import Engine, Sampled, SamplingRequest
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.learner.step_bytes import PassBytes
from gavel.trainer.memory import needs as memory_needs
from gavel.trainer.memory.needs import PlannedPolicy
from gavel.trainer.model import TrainableModel
from gavel.trainer.policy import policy as policy_room
from gavel.trainer.policy.policy import Policy, load_base
from tests.fake_hub import TOKEN, FakeHub
from tests.limits import HANG_SECONDS

VOCABULARY = 64

_ORDER = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": description, "parameters": _ORDER}}
    for name, description in [("look_up_order", "Look up an order."), ("refund", "Pay the money back.")]
]

OPENING: list[Message] = [
    {"role": "system", "content": "You run the returns desk."},
    {"role": "user", "content": "I want a refund for order 7890."},
]


def sampled_turn(
    prompt_ids: list[int], token_ids: list[int], logprobs: list[float] | None = None, **extra: object
) -> Choice:
    values = [-0.5] * len(token_ids) if logprobs is None else logprobs
    content = [{"token": str(token), "logprob": value, "top_logprobs": []} for token, value in enumerate(values)]
    said = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "said"}}
    sampled = {"logprobs": {"content": content}, "prompt_token_ids": prompt_ids, "token_ids": token_ids}
    return Choice.model_validate({**said, **sampled, **extra})


@dataclass(frozen=True, slots=True)
class Letters:
    """A token space of letters: 0 spells a, 25 spells z, 26 spells ab, and there are no more."""

    vocabulary: int = 27
    max_context: int = 64

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join("ab" if token == 26 else chr(ord("a") + token) for token in token_ids)


def spelled(text: str) -> list[int]:
    return [ord(letter) - ord("a") for letter in text]


def attempt(*turns: Choice, **fields: object) -> Trajectory:
    return Trajectory(messages_and_choices=[{"role": "user", "content": "task"}, *turns], **fields)


def turns_on(count: int) -> list[Choice]:
    """Turns of two tokens each, which go on from one another."""
    return [sampled_turn([1, *[2, 9, 8] * turn], [2, 9]) for turn in range(count)]


def sequence(prompt_ids: list[int], token_ids: list[int], logprobs: list[float], temperature: float = 1.0):
    tokens = TokenSequence()
    tokens.extend(prompt_ids)
    tokens.extend(token_ids, logprobs=logprobs, temperature=temperature)
    return tokens


def stirred(policy: Any, scale: float = 0.1, seed: int = 1) -> Any:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(scale * torch.randn_like(parameter))
    return policy


def gradient_of(policy: Policy) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


def tiny_model(seed: int = 0, **config: object) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    settings: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8}
    settings |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    settings |= {"max_position_embeddings": 1024, "initializer_range": 0.3, "tie_word_embeddings": True}
    return Qwen3ForCausalLM(Qwen3Config(**(settings | config))).eval()


def full_logprobs(model: torch.nn.Module, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits.float() / temperature, -1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


def request_for(prompt_ids: list[int], **changes: object) -> SamplingRequest:
    settings = {"stop_ids": frozenset(), "max_tokens": 12, "temperature": 1.0, "seed": 0}
    return SamplingRequest(prompt_ids=prompt_ids, **(settings | changes))


def some_ids(seed: int, length: int, vocabulary: int = VOCABULARY) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocabulary, length).tolist()


IDS = [5, 3, 60, 2]


def ask(engine: Engine, prompt_ids: list[int] = IDS, **changes: object) -> Sampled:
    return engine.submit(request_for(prompt_ids, **changes)).result(timeout=HANG_SECONDS)


def assert_sampled_by(
    model: torch.nn.Module, prompt_ids: list[int], found: Sampled, temperature: float = 1.0, within: float = 1e-4
) -> None:
    expected = full_logprobs(model, prompt_ids + found.token_ids, temperature)[len(prompt_ids) - 1 :]
    assert found.logprobs == pytest.approx(expected.tolist(), abs=within)


class WholeModel:
    """An adapter that replaces every weight: no small change can pass for it."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def merged_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._model.named_parameters()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("vllm") and not os.environ.get("GAVEL_TEST_VLLM_PYTHON"):
        pytest.skip("GAVEL_TEST_VLLM_PYTHON does not name a Python with vLLM; `make test-vllm` makes one")


def a_model(name: str = "clerk", project: str = "tests", base_model: str = EMBEDDED_POLICY, **fields: Any):
    return TrainableModel(name=name, project=project, base_model=base_model, **fields)


@contextlib.asynccontextmanager
async def registered(
    runs: Path, model: TrainableModel | str = "clerk", **settings: Any
) -> AsyncGenerator[tuple[TrainableModel, LocalBackend]]:
    """A model, by its name one of the embedded policy, registered with a local backend of these settings."""
    model = a_model(model) if isinstance(model, str) else model
    async with LocalBackend(runs, **settings) as backend:
        await model.register(backend)
        yield model, backend


def adapter_file(runs: Path, step: int, name: str = "clerk") -> Path:
    return runs / "tests" / name / "checkpoints" / f"{step:06d}" / "adapter_model.safetensors"


async def a_group(model: TrainableModel, rewards: list[float | None]) -> TrajectoryGroup:
    scenario = find_scenario("returns_desk")
    task = scenario.tasks("train")[0]
    group = await TrajectoryGroup(rollout(model, scenario, task, max_tokens=32, seed=n) for n in range(len(rewards)))
    for trajectory, reward in zip(group, rewards, strict=True):
        trajectory.reward = reward
    return group


@pytest.fixture(scope="module")
def counted_once() -> Iterator[None]:
    """A learner's steps are counted once for all plans of one policy: plans differ in what they make of them."""
    count, counted = memory_needs.learner_bytes, {}

    def once(policy: PlannedPolicy, *, device: str, checkpointing: bool) -> PassBytes:
        key = repr(policy.model), policy.dtype, policy.base_bytes, policy.max_context, device, checkpointing
        if key not in counted:
            counted[key] = count(policy, device=device, checkpointing=checkpointing)
        return counted[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_needs, "learner_bytes", once)
        yield


MakeEngine = Callable[..., TransformersEngine]


@pytest.fixture(scope="session", autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(int(os.environ.get("GAVEL_TEST_THREADS", "1")))
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    with contextlib.ExitStack() as made:

        def make(model: torch.nn.Module | None = None, **settings: int) -> TransformersEngine:
            return made.enter_context(contextlib.closing(TransformersEngine(model or tiny_model(), **settings)))

        yield make


@pytest.fixture(scope="session")
def policy() -> Policy:
    return Policy(EMBEDDED_POLICY, LoraSettings(rank=4))


@pytest.fixture
def fresh_policy() -> Policy:
    return Policy(EMBEDDED_POLICY, LoraSettings(rank=4))


@pytest.fixture
def opened(tmp_path, monkeypatch, policy):
    monkeypatch.setattr(policy_room, "chat_renderer", lambda *_: policy.renderer)

    def open_policy(family: Any, model: Any = None, *, lora: Any = None, experts: bool = False) -> Policy:
        family.read_config().save_pretrained(tmp_path)
        policy.tokenizer.save_pretrained(tmp_path)
        settings = PolicySettings(dtype="float32")
        lora = lora or LoraSettings(rank=2, experts=experts)
        own = Policy(str(tmp_path), lora, settings=settings, load=lambda *_: model or family.model())
        stirred(own)
        own.save_adapter(tmp_path)
        return own

    return open_policy


@pytest.fixture(scope="session")
def embedded_base() -> torch.nn.Module:
    return load_base(EMBEDDED_POLICY, torch.float32, "cpu")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Generator[FakeHub]:
    fake = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", fake.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its protocol is a native library's own
    yield fake
    fake.close()
