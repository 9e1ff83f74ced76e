"""Learning from what trajectories say: the tokens that are trained, the loss, and a run that holds such steps."""

import json
from pathlib import Path
from typing import Any

import pytest
import renderers
import torch
from renderers import create_renderer
from transformers import AutoTokenizer

from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.library.returns_desk import scenario
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scripted_agent import played_by, players_of
from gavel.scenarios.trajectory import History, Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.trainer.backends.local import LocalBackend
from gavel.trainer.config import SftConfig, TrainConfig
from gavel.trainer.data.left_out import LeftOut
from gavel.trainer.data.token_sequences import TokenError, TokenSequence, join_turns
from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.learner.learner import Learner
from gavel.trainer.policy.policy import Policy
from gavel.trainer.serving.turn_cache import TurnCache
from gavel.trainer.sft.sft_batch import (
    DemonstrationError,
    UnsayableError,
    as_training,
    make_sft_batch,
    read_demonstrations,
)
from tests.trainer.conftest import OPENING, TOOLS, a_model, attempt, gradient_of, registered, sampled_turn, stirred


def say(text: str, **extra: str) -> Message:
    return {"role": "assistant", "content": text, **extra}


CLOSING = say("Your money is on its way.")


def test_of_several_agents_only_the_policy_s_turns_are_learned(policy: Policy):
    mine = attempt(sampled_turn([5, 6, 7], [8, 9]))
    talk: list[Message] = [{"role": "user", "content": "I want my money back."}, CLOSING]
    other = History(messages_and_choices=[*talk], agent="other")
    alone = make_sft_batch([mine], policy)
    assert alone.sequences
    together = mine.model_copy(update={"agent": "mine", "additional_histories": [other]})
    assert make_sft_batch([together], policy).trained_tokens == alone.trained_tokens
    written = Trajectory(messages_and_choices=[*OPENING, CLOSING], agent="mine", additional_histories=[other])
    assert len(make_sft_batch([written], policy).sequences) == 2


async def demonstrations(count: int) -> list[Trajectory]:
    """What a careful clerk does."""
    expert, tasks = players_of("returns_desk")["expert"], scenario.sample("train", count, seed=5)
    return [await rollout(played_by(expert, task), scenario, task) for task in tasks]


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch_tokens", [300, 10**6])
async def test_the_loss_and_its_gradient_are_the_written_out_cross_entropy(fresh_policy, micro_batch_tokens):
    policy = stirred(fresh_policy, 0.02)
    reasoned = [*OPENING, {**CLOSING, "reasoning_content": "Short."}, *OPENING[1:], CLOSING]
    given = [*await demonstrations(6), Trajectory(messages_and_choices=reasoned)]
    config = SftConfig(micro_batch_tokens=micro_batch_tokens, max_gradient_norm=1e9)
    batch = make_sft_batch(given, policy)
    assert (batch.trajectories, len(batch.sequences)) == (7, 8)
    expected, count = torch.zeros(()), sum(s.tokens.trained_tokens for s in batch.sequences)
    for trained in batch.sequences:  # one plain forward pass a sequence
        ids = torch.tensor(trained.tokens.token_ids)
        labels = ids.masked_fill(~torch.tensor(trained.tokens.sampled), -100)
        logits = policy.model(input_ids=ids[None]).logits[0, :-1]
        expected = expected + torch.nn.functional.cross_entropy(logits, labels[1:], reduction="sum") / count
    expected.backward()
    gradient = gradient_of(policy)
    policy.model.zero_grad()
    metrics = Learner(policy).step(batch, as_training(config, batch))
    assert metrics["updates"] == 1
    assert metrics["loss"] == pytest.approx(expected.item(), abs=1e-5)
    assert torch.cosine_similarity(gradient_of(policy), gradient, dim=0) > 0.99999
    assert gradient_of(policy).norm().item() == pytest.approx(gradient.norm().item(), rel=1e-4)


def test_what_cannot_be_learnt_from_is_counted(policy):
    given = [
        Trajectory(messages_and_choices=OPENING),
        Trajectory(messages_and_choices=[*OPENING, {**CLOSING, "content": "word " * 9000}]),
        Trajectory(messages_and_choices=[*OPENING, {**CLOSING, "content": "<think>in the text</think>"}]),
        Trajectory(messages_and_choices=[*OPENING, CLOSING]),
    ]
    for token in (-1, 10**6):
        with pytest.raises(TokenError, match=f"token id {token}"):
            make_sft_batch([attempt(sampled_turn([1, 2], [3, token]))], policy)
    batch = make_sft_batch(given, policy)
    assert batch.left_out_members == {LeftOut.NO_ASSISTANT_TURN: 1, LeftOut.TOO_LONG: 1, LeftOut.NOT_RENDERABLE: 1}
    assert batch.trajectories == len(batch.sequences) == 1


@pytest.mark.slow
async def test_the_loss_falls_and_the_policy_that_is_served_follows(tmp_path: Path):
    given = await demonstrations(24)
    async with registered(tmp_path, "pupil") as (model, backend):
        config = SftConfig(learning_rate=2e-3, batch_size=8)
        results = [await model.train_sft(given, config) for _ in range(3)]
        results.append(await model.train_sft([TrajectoryGroup(given)], config))
        assert model.get_inference_name() == "pupil@4"
        rows = backend.history(model, "sft")
        acted = await rollout(model, scenario, scenario.sample("held_out", 1, seed=2)[0], max_tokens=64, seed=0)
    losses = [result.metrics["loss"] for result in results]
    assert losses[-1] < 0.5 * losses[0]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["loss"] for row in rows] == losses
    assert rows[0]["updates"] == 3
    assert rows[0]["trajectories_trained"] == 24
    assert "ratio_max" not in rows[0], "there is no sampler to compare with"
    assert acted.policy_version == 4
    run = tmp_path / "tests" / "pupil"
    assert (run / "checkpoints" / "000004" / "adapter_model.safetensors").is_file()
    stored = list(TrajectoryStore(run / "trajectories" / "sft" / "000001.jsonl.zst"))
    assert [group.trajectories[0].to_json() for group in stored] == [trajectory.to_json() for trajectory in given]


@pytest.mark.slow
async def test_a_step_of_reinforcement_goes_on_from_imitation_bit_for_bit_after_a_restart(tmp_path: Path):
    given = await demonstrations(6)
    async with registered(tmp_path, "sampler") as (sampler, _):
        task = scenario.sample("train", 1, seed=3)[0]
        group = await TrajectoryGroup(rollout(sampler, scenario, task, max_tokens=48, seed=n) for n in range(3))
        for number, trajectory in enumerate(group):
            trajectory.reward = float(number)

    async def adapter(name: str, *, restart: bool) -> bytes:
        model, backend = a_model(name), LocalBackend(tmp_path)
        await model.register(backend)
        await model.train_sft(given, SftConfig(batch_size=2))
        if restart:
            await backend.close()
            model, backend = a_model(name), LocalBackend(tmp_path)
            await model.register(backend)
        assert (await model.train([group], TrainConfig(learning_rate=1e-3))).trained
        result = await model.train_sft(given, SftConfig(batch_size=2))
        await backend.close()
        assert (result.step, result.metrics["updates"]) == (3, 3)
        return (tmp_path / "tests" / name / "checkpoints" / "000003" / "adapter_model.safetensors").read_bytes()

    assert await adapter("through", restart=False) == await adapter("restarted", restart=True)


@pytest.mark.slow
async def test_nothing_to_imitate_changes_nothing_and_a_malformed_demonstration_is_named(tmp_path: Path):
    bad = Trajectory(messages_and_choices=[*OPENING, {"role": "assistant", "content": 7}])
    async with registered(tmp_path, "idle") as (model, _):
        with pytest.raises(DemonstrationError, match="trajectory 2: message 2"):
            await model.train_sft([*await demonstrations(2), bad])
        assert await model.get_step() == 0
        result = await model.train_sft([Trajectory(messages_and_choices=OPENING)])
        assert (result.trained, result.step) == (False, 1)
        assert result.reason == "nothing was trained: 1 trajectory without an assistant turn"
        assert result.metrics["left_out/no_assistant_turn"] == 1
        assert not (await model.train_sft([])).trained


def call(name: str, **arguments: str) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls: Any = [{"id": "c1", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


LOOK = call("look_up_order", order_id="7890")
RESULT: Message = {"role": "tool", "tool_call_id": "c1", "content": "a lamp"}
THANKS: Message = {"role": "user", "content": "Thanks!"}
EPISODE = [*OPENING, LOOK, RESULT, CLOSING, THANKS, say("Bye.")]


def sequences_of(policy: Policy, messages: list) -> list[TokenSequence]:
    return join_turns([read_demonstrations(History(messages_and_choices=messages, tools=TOOLS), policy)])


def trained_texts(policy: Policy, tokens: TokenSequence) -> list[str]:
    """The runs of trained tokens, decoded."""
    runs: list[list[int]] = []
    for place, own in enumerate(tokens.sampled):
        if own and not tokens.sampled[place - 1]:
            runs.append([])
        if own:
            runs[-1].append(tokens.token_ids[place])
    return [policy.tokenizer.decode(run) for run in runs]


def test_exactly_the_assistants_tokens_are_trained(policy):
    (tokens,) = sequences_of(policy, EPISODE)
    assert trained_texts(policy, tokens) == [
        '<tool_call>\n{"name": "look_up_order", "arguments": {"order_id": "7890"}}\n</tool_call><|im_end|>',
        "Your money is on its way.<|im_end|>",
        "Bye.<|im_end|>",
    ]
    context = policy.tokenizer.decode([t for t, own in zip(tokens.token_ids, tokens.sampled, strict=True) if not own])
    assert "Pay the money back." in context, "the tools are shown"
    assert "a lamp" in context
    assert set(tokens.logprobs) == {0.0}
    assert set(tokens.temperatures) == {1.0}


def test_a_demonstrated_turn_stands_in_the_prompt_that_the_endpoint_would_have_made(policy):
    turns = read_demonstrations(History(messages_and_choices=EPISODE, tools=TOOLS), policy)
    endpoint = TurnCache(policy.renderer, policy.decode)
    places = [at for at, message in enumerate(EPISODE) if message["role"] == "assistant"]
    for at, turn in zip(places, turns, strict=True):
        assert turn.prompt_ids == endpoint.prompt(EPISODE[:at], TOOLS).token_ids
        endpoint.sampled(EPISODE[:at], TOOLS, EPISODE[at], turn.prompt_ids, turn.token_ids)


def test_a_template_that_drops_reasoning_makes_several_sequences_and_sampled_turns_keep_their_ids(policy):
    reasoned = [*OPENING, say("Sure?", reasoning_content="Better ask."), THANKS, say("Done.", reasoning_content="Go.")]
    first, second = sequences_of(policy, reasoned)
    assert trained_texts(policy, first) == ["<think>\nBetter ask.\n</think>\n\nSure?<|im_end|>"]
    assert trained_texts(policy, second) == ["<think>\nGo.\n</think>\n\nDone.<|im_end|>"]
    assert "Better ask." not in policy.tokenizer.decode(second.token_ids)
    prompt = policy.renderer.render_ids(OPENING, tools=TOOLS, add_generation_prompt=True)
    odd = [77, 78, 79, policy.renderer.get_stop_token_ids()[0]]  # no tokenizer would split it so
    unknown = {"role": "developer", "content": "what is never rendered is never judged"}
    (tokens,) = sequences_of(policy, [unknown, *OPENING, sampled_turn(prompt, odd), THANKS, say("Not sampled.")])
    assert tokens.token_ids == prompt + odd
    assert [t for t, own in zip(tokens.token_ids, tokens.sampled, strict=True) if own] == odd


@pytest.mark.parametrize(
    "turn",
    [
        say("<think>Hidden.</think>Shown."),
        say('<tool_call>\n{"name": "refund", "arguments": {}}\n</tool_call>'),
        call("refund") | {"tool_calls": [{"function": {"name": "refund", "arguments": "no JSON"}}]},
    ],
)
def test_what_would_not_be_read_back_is_refused(policy, turn):
    with pytest.raises(UnsayableError, match="reasoning_content"):
        sequences_of(policy, [*OPENING, turn])


def test_a_format_that_opens_a_reasoning_block_is_continued_from_its_own_prompt_to_its_own_stop(fresh_policy):
    specials = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    fresh_policy.tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_PATH)
    fresh_policy.tokenizer.add_special_tokens({"additional_special_tokens": specials})
    fresh_policy.renderer = create_renderer(fresh_policy.tokenizer, renderers.Qwen35RendererConfig())
    turns = read_demonstrations(History(messages_and_choices=EPISODE, tools=TOOLS), fresh_policy)
    closing = fresh_policy.tokenizer.decode(turns[1].token_ids)
    assert closing == "\n</think>\n\nYour money is on its way.<|im_end|>"
    for turn, message in zip(turns, [LOOK, CLOSING, say("Bye.")], strict=True):
        assert turn.token_ids[-1] in fresh_policy.renderer.get_stop_token_ids()
        read = fresh_policy.renderer.parse_response(turn.token_ids, tools=TOOLS, prompt_ids=turn.prompt_ids)
        assert read.content.strip() == (message["content"] or "")
        assert not read.reasoning_content
        called = [each["function"]["name"] for each in message.get("tool_calls") or ()]
        assert [call.name for call in read.tool_calls] == called
