"""Speed of the embedded engine against `model.generate` over padded batches: same policy, adapter, tasks and tools.

    OMP_NUM_THREADS=1 python benchmarks/engine.py --json

One training step's rollouts of `returns_desk` (16 tasks x 8) with the embedded policy and a non-zero adapter, on one
thread. The engine is called as the endpoint calls it: each conversation continues when its own turn is done. The
baseline samples the next turn of all unfinished conversations as one left-padded batch, until its longest turn is done.
Both return the log-probs of sampled tokens. Seconds are CPU seconds of the process, less the code that both sides share
(parsing, tools, rendering); best of interleaved repetitions. Every log-prob of the last repetition is compared with a
plain forward pass of the PEFT model. Exits with 1 when a figure misses its bar.
"""

import argparse
import asyncio
import json
import os
import queue
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from renderers import Renderer
from renderers.base import ToolCallParseStatus

from gavel.scenarios.library.returns_desk import scenario
from gavel.scenarios.seeds import seed_of
from gavel.scenarios.task import Task
from gavel.trainer.config import LoraSettings
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.engines.protocol import Sampled, SamplingRequest
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.policy.policy import Policy, load_base

TASKS, MEMBERS, CONTEXT, LONGEST_TURN = 16, 8, 2048, 256
RATIO_BAR, LOGPROB_BAR = 3.0, 1e-4


@dataclass(slots=True)
class Conversation:
    """One rollout."""

    renderer: Renderer
    task: Task
    seed: int
    prompt: list[int] = field(default_factory=list)
    turns: list[Sampled] = field(default_factory=list)
    """Sampled turns; the prompt of a turn contains the turns before it."""
    prompts: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0
    """CPU time of parsing, tools and rendering."""

    def __post_init__(self) -> None:
        messages = [{"role": "system", "content": scenario.system}, {"role": "user", "content": self.task.user}]
        ids = self.renderer.render_ids(messages, tools=scenario.toolbox.schemas, add_generation_prompt=True)  # type: ignore[arg-type]
        self.prompt = list(ids)

    def advance(self, sampled: Sampled) -> bool:
        """Adds a turn and the results of its tool calls; False when the conversation is over."""
        started = time.thread_time()
        try:
            return self._advance(sampled)
        finally:
            self.seconds += time.thread_time() - started

    def _advance(self, sampled: Sampled) -> bool:
        self.prompts.append(self.prompt)
        self.turns.append(sampled)
        if sampled.finish_reason == "length" or len(self.turns) == scenario.max_turns:
            return False
        parsed = self.renderer.parse_response(sampled.token_ids, tools=scenario.toolbox.schemas)  # type: ignore[arg-type]
        answers = []
        for call in parsed.tool_calls:
            if call.status == ToolCallParseStatus.OK:
                arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
                result = _RUNNER.run(scenario.toolbox.call(call.name or "", arguments, self.task))
                answers.append({"role": "tool", "tool_call_id": call.name or "", "content": result.content})
                if result.done:
                    return False
        if not answers:
            return False
        bridged = self.renderer.bridge_to_next_turn(
            self.prompt, sampled.token_ids, answers, tools=scenario.toolbox.schemas
        )  # type: ignore[arg-type]
        assert bridged is not None
        self.prompt = list(bridged.token_ids)
        return len(self.prompt) + LONGEST_TURN <= CONTEXT

    def request(self, stop_ids: frozenset[int]) -> SamplingRequest:
        return SamplingRequest(self.prompt, stop_ids, LONGEST_TURN, 1.0, self.seed + len(self.turns))


_RUNNER = asyncio.Runner()

Sampler = Callable[[list[Conversation]], None]
"""Samples all conversations to their end."""


def through_engine(engine: TransformersEngine, stop_ids: frozenset[int]) -> Sampler:
    def run(conversations: list[Conversation]) -> None:
        done: queue.SimpleQueue[tuple[Conversation, Future[Sampled]]] = queue.SimpleQueue()

        def ask(conversation: Conversation) -> None:
            future = engine.submit(conversation.request(stop_ids))
            future.add_done_callback(lambda future: done.put((conversation, future)))

        for conversation in conversations:
            ask(conversation)
        left = len(conversations)
        while left:
            conversation, future = done.get()
            if conversation.advance(future.result()):
                ask(conversation)
            else:
                left -= 1

    return run


def through_generate(policy: Policy, stop_ids: frozenset[int]) -> Sampler:
    padding = policy.tokenizer.pad_token_id

    @torch.inference_mode()
    def run(conversations: list[Conversation]) -> None:
        torch.manual_seed(conversations[0].seed % 2**63)
        active = list(conversations)
        while active:
            width = max(len(each.prompt) for each in active)
            ids = torch.tensor([[padding] * (width - len(each.prompt)) + each.prompt for each in active])
            mask = torch.tensor([[0] * (width - len(each.prompt)) + [1] * len(each.prompt) for each in active])
            replies = policy.model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=LONGEST_TURN,
                eos_token_id=sorted(stop_ids),
                pad_token_id=padding,
                return_dict_in_generate=True,
                output_logits=True,
            )
            tokens = replies.sequences[:, width:]
            logprobs = torch.log_softmax(torch.stack(replies.logits, 1), -1).gather(-1, tokens[:, :, None])[:, :, 0]
            turns = [_ended(*pair, stop_ids) for pair in zip(tokens.tolist(), logprobs.tolist(), strict=True)]
            active = [each for each, turn in zip(active, turns, strict=True) if each.advance(turn)]

    return run


def _ended(reply: list[int], logprobs: list[float], stop_ids: frozenset[int]) -> Sampled:
    end = next((at + 1 for at, token in enumerate(reply) if token in stop_ids), None)
    return Sampled(reply[:end], logprobs[:end], "length" if end is None else "stop", 0)


@torch.inference_mode()
def largest_gap(policy: Policy, conversations: Sequence[Conversation]) -> float:
    """Largest difference, in nats, of a sampled token's log-prob from that of a plain pass of the PEFT model."""
    gap = 0.0
    for conversation in conversations:
        for prompt, turn in zip(conversation.prompts, conversation.turns, strict=True):
            ids = torch.tensor([[*prompt, *turn.token_ids]])
            logits = policy.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
            own = torch.log_softmax(logits, -1).gather(-1, ids[0, len(prompt) :, None])[:, 0]
            gap = max(gap, (own - torch.tensor(turn.logprobs)).abs().max().item())
    return gap


def measure(repetitions: int, seed: int) -> dict[str, Any]:
    policy = Policy(EMBEDDED_POLICY, LoraSettings())
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    stop_ids = frozenset(policy.renderer.get_stop_token_ids())
    engine = TransformersEngine(
        load_base(EMBEDDED_POLICY, policy.dtype, policy.device), slots=TASKS * MEMBERS, max_context=CONTEXT
    )
    engine.publish(policy, 1)
    samplers = {"engine": through_engine(engine, stop_ids), "generate": through_generate(policy, stop_ids)}
    rates: dict[str, list[float]] = {name: [] for name in samplers}
    lengths: dict[str, list[int]] = {name: [] for name in samplers}
    turns: dict[str, list[int]] = {name: [] for name in samplers}
    gaps: dict[str, float] = {}
    for repetition in range(repetitions + 1):  # the first warms up
        tasks = scenario.sample("train", TASKS, seed=seed, step=repetition)
        for name, sample in samplers.items():
            conversations = [
                Conversation(policy.renderer, task, seed_of(seed, repetition, task.id, member))
                for task in tasks
                for member in range(MEMBERS)
            ]
            started = time.process_time()
            sample(conversations)
            seconds = time.process_time() - started - sum(each.seconds for each in conversations)
            sampled = [len(turn.token_ids) for each in conversations for turn in each.turns]
            if repetition:
                rates[name].append(sum(sampled) / seconds)
                lengths[name] += sampled
                turns[name] += [len(each.turns) for each in conversations]
            if repetition == repetitions:
                gaps[name] = largest_gap(policy, conversations)
    engine.close()
    figures: dict[str, Any] = {
        name: {
            "tokens_per_cpu_second": round(max(rates[name])),
            "of_each_repetition": [round(rate) for rate in rates[name]],
            "turns_of_a_conversation": round(fmean(turns[name]), 2),
            "tokens_of_a_turn": [min(lengths[name]), round(fmean(lengths[name]), 1), max(lengths[name])],
            "largest_logprob_gap": gaps[name],
        }
        for name in samplers
    }
    ratio = max(rates["engine"]) / max(rates["generate"])
    return figures | {"ratio": round(ratio, 2)}


def missed_bars(figures: dict[str, Any]) -> list[str]:
    missed = []
    if figures["ratio"] < RATIO_BAR:
        missed.append(f"the engine samples {figures['ratio']} times as fast, the bar is {RATIO_BAR:g}")
    for name in ("engine", "generate"):
        gap = figures[name]["largest_logprob_gap"]
        if not gap <= LOGPROB_BAR:
            missed.append(f"{name}: a log-prob is off by {gap:.2g} nats, the bar is {LOGPROB_BAR:g}")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure(given.repetitions, given.seed)
    missed = missed_bars(figures)
    if given.json:
        print(json.dumps(figures | {"missed_bars": missed}, indent=1))
    else:
        for name in ("engine", "generate"):
            row = figures[name]
            shortest, mean, longest = row["tokens_of_a_turn"]
            print(
                f"{name:9} {row['tokens_per_cpu_second']:6,} tokens a CPU second; "
                f"{row['turns_of_a_conversation']} turns of {mean} tokens ({shortest} to {longest}), "
                f"log-probs off by {row['largest_logprob_gap']:.1g} nats at most"
            )
        print(f"ratio {figures['ratio']}")
        print("\n".join(missed) or "Every bar is met.")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
