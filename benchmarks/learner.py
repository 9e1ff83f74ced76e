"""Time and memory of one optimisation step against TRL's and a plain padded one: same model, tokens and loss.

    OMP_NUM_THREADS=1 python benchmarks/learner.py --json

A group of 8 over a Qwen3-shaped policy (4 layers of 256, 32k entries, LoRA r8), float32, one thread. A step is
forward, loss, backward, clipping and AdamW; losses and gradients are compared first. Seconds are CPU seconds, best of
interleaved repetitions. Memory is what the first step adds to the peak of a fresh process. The bound is the minimal
arithmetic (unique tokens through the trunk, trained ones through the head, no recomputation) at the rate of a
2048-cubed matrix product measured right before and after a step. Exits with 1 when a figure misses its bar.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import unwrap
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

from gavel.trainer.config import ClippedSurrogate, LoraSettings, TrainConfig
from gavel.trainer.data.packing import pack
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.data.training_batch import Batch, TrainedSequence
from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.learner.learner import Learner
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.policy.policy import Policy

# isort: split
# After gavel.trainer, which silences a log line that bitsandbytes writes when peft imports it.
import peft
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_SIZE, WIDE, RANK = 32768, 256, 4, 4, 2, 64, 768, 8
CLIP, RATE = 0.2, 1e-9
MEMORY_BAR, BOUND_BAR, GROWTH_BAR = 0.15, 0.85, 1.2


@dataclass(frozen=True, slots=True)
class Case:
    """A group of `members` over one prompt, each with `turns` of sampled tokens and tool results."""

    prompt: int
    sampled: int
    results: int = 0
    turns: int = 1
    members: int = 8
    bar: float = 0.0
    """Minimum ratio of TRL's time to ours; 0 = no bar."""
    branches: tuple[int, ...] = ()
    """Number of distinct continuations of each turn; empty = members share nothing but the prompt."""


CASES = {
    "512/128": Case(512, 128, bar=11.0),
    "64/384": Case(64, 384, bar=2.4),
    "256/256, half of it tool tokens": Case(256, 128, 128, bar=7.0),
    "8 turns with tool results": Case(256, 48, 64, turns=8, bar=8.0, branches=(1, 2, 2, 4, 4, 8, 8, 8)),
    "8 turns, parted from the first": Case(256, 48, 64, turns=8),
}


def group(case: Case) -> list[TokenSequence]:
    draw = random.Random(0)

    def words(count: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(count)]

    found = [TokenSequence() for _ in range(case.members)]
    prompt = words(case.prompt)
    for tokens in found:
        tokens.extend(prompt)
    for branches in case.branches or [case.members] * case.turns:
        turns = [(words(case.sampled), words(case.results)) for _ in range(branches)]
        for member, tokens in enumerate(found):
            said, result = turns[member * branches // case.members]
            tokens.extend(said, logprobs=[0.0] * len(said))
            tokens.extend(result)
    return found


def save_base(directory: Path) -> None:
    """A random policy with distributions far from uniform, and a tokenizer that is never used."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS}
    shape |= {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_SIZE}
    config = Qwen3Config(**shape, intermediate_size=WIDE, initializer_range=0.1, tie_word_embeddings=True)
    Qwen3ForCausalLM(config).save_pretrained(directory)
    for path in EMBEDDED_PATH.glob("token*"):
        (directory / path.name).write_bytes(path.read_bytes())


class Gavel:
    """The step of Gavel's learner."""

    def __init__(self, base: Path, case: Case) -> None:
        policy = Policy(str(base), LoraSettings(rank=RANK, alpha=2 * RANK), renderer="qwen3")
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        self.learner, tokens = Learner(policy), group(case)
        with torch.no_grad():
            sampler = trained_logprobs(policy, tokens)
        drifted = iter((sampler + 0.1 * torch.randn_like(sampler)).tolist())
        for each in tokens:
            each.logprobs = [next(drifted) if own else 0.0 for own in each.sampled]
        advantages = torch.linspace(-1, 1, len(tokens)).tolist()
        self.batch = Batch([TrainedSequence(t, a, 0) for t, a in zip(tokens, advantages, strict=True)])
        self.config = TrainConfig(learning_rate=RATE, loss=ClippedSurrogate(clip_low=CLIP, clip_high=CLIP))

    def gradient(self) -> torch.Tensor:
        return flat_gradient(self.learner.policy.parameters())

    def step(self) -> float:
        return self.learner.step(self.batch, self.config)["loss"]


class Peer:
    """A step on the padded batch with PEFT's layers; subclasses differ in `loss`."""

    def __init__(self, model: Any, adapter: dict[str, torch.Tensor], batch: Batch, rank: int = RANK) -> None:
        """Over a base of its own, with the weights of `adapter`."""
        self.prepare(model)
        settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
        self.model = peft.get_peft_model(model, settings)
        self.model.load_state_dict(adapter, strict=False)
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
        sequences = batch.sequences
        width = max(len(s.tokens.token_ids) for s in sequences)
        rows = [s.tokens for s in sequences]

        def padded(values: Callable[[TokenSequence], list[Any]], dtype: torch.dtype) -> torch.Tensor:
            padded_rows = [values(t) + [0] * (width - len(t.token_ids)) for t in rows]
            return torch.tensor(padded_rows, dtype=dtype, device=model.device)

        self.prompt = rows[0].sampled.index(True)
        self.ids = padded(lambda t: t.token_ids, torch.long)
        self.real = padded(lambda t: [1] * len(t.token_ids), torch.long)
        self.trained = padded(lambda t: list(t.sampled), torch.long)
        self.old = padded(lambda t: t.logprobs, torch.float32)
        self.advantages = torch.tensor([s.advantage for s in sequences], device=model.device)

    @classmethod
    def beside(cls, own: Gavel, base: Path) -> "Peer":
        """With the same weights and batch."""
        adapter = {k: v for k, v in own.learner.policy.model.state_dict().items() if "lora_" in k}
        return cls(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter, own.batch)

    def prepare(self, model: Any) -> None:
        """Changes to the model before the adapter is added."""

    def loss(self) -> torch.Tensor:
        raise NotImplementedError

    def gradient(self) -> torch.Tensor:
        return flat_gradient(self.parameters)

    def step(self) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return loss.item()


class Naive(Peer):
    """All logits of the padded batch, and autograd."""

    def loss(self) -> torch.Tensor:
        logits = self.model(input_ids=self.ids, attention_mask=self.real, use_cache=False).logits[:, :-1]
        logprobs = torch.log_softmax(logits.float(), -1).gather(-1, self.ids[:, 1:, None])[..., 0]
        ratio, advantages = torch.exp(logprobs - self.old[:, 1:]), self.advantages[:, None]
        losses = -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        return (losses * self.trained[:, 1:]).sum() / self.trained.sum()


class Trl(Peer):
    """TRL's `_compute_loss` and fused head, called as its GRPOTrainer does, with a namespace instead of the trainer."""

    def prepare(self, model: Any) -> None:
        from trl.trainer.utils import add_fused_lm_head

        add_fused_lm_head(model, outputs=("log_probs", "entropy"))

    def loss(self) -> torch.Tensor:
        from trl import GRPOTrainer

        accelerator = SimpleNamespace(
            autocast=contextlib.nullcontext, num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x
        )
        trainer = SimpleNamespace(
            model=self.model,
            accelerator=accelerator,
            args=SimpleNamespace(delta=None, steps_per_generation=1, use_bias_correction_kl=True),
            aux_loss_enabled=False,
            top_entropy_quantile=1.0,
            off_policy_mask_threshold=None,
            importance_sampling_level="token",
            beta=0.0,
            loss_type="dapo",
            epsilon_low=CLIP,
            epsilon_high=CLIP,
            use_vllm=False,
            current_gradient_accumulation_steps=1,
            _entropy_bonus_enabled=False,
            _metrics=defaultdict(lambda: defaultdict(list)),
        )
        score = unwrap(GRPOTrainer._get_per_token_logps_and_entropies)  # without its own clock
        trainer._get_per_token_logps_and_entropies = partial(score, trainer)
        prompt = self.prompt
        inputs = {
            "prompt_ids": self.ids[:, :prompt],
            "prompt_mask": self.real[:, :prompt],
            "completion_ids": self.ids[:, prompt:],
            "completion_mask": self.real[:, prompt:],
            "tool_mask": self.trained[:, prompt:],
            "advantages": self.advantages,
            "old_per_token_logps": self.old[:, prompt:],
            "num_items_in_batch": self.trained.sum(),
        }
        return GRPOTrainer._compute_loss(trainer, self.model, inputs)  # type: ignore[arg-type]


PEERS: dict[str, type[Peer]] = {"naive padded": Naive, "TRL": Trl}


def flat_gradient(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])


def check_equal(own: Gavel, peers: dict[str, Peer]) -> None:
    loss, gradient = own.step(), own.gradient()
    for name, peer in peers.items():
        other = peer.step()
        cosine = torch.cosine_similarity(gradient.double(), peer.gradient().double(), 0).item()
        if abs(loss - other) > 1e-5 or cosine < 0.99999:
            raise SystemExit(f"not the same step: loss {loss} and {name}'s {other}, cosine of the gradients {cosine}")


def cpu_seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def best_seconds(steps: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """CPU seconds of each kind, interleaved."""
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(repetitions):
        for name, step in steps.items():
            best[name] = min(best[name], cpu_seconds(step))
    return best


def least_operations(own: Gavel) -> float:
    """Floating-point operations of the minimal step."""
    packed = pack([s.tokens for s in own.batch.sequences])
    tokens, scored, pairs = len(packed.token_ids), len(packed.predictors), int((packed.positions + 1).sum())
    query, kv = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
    first = [(HIDDEN, query), (HIDDEN, kv), (HIDDEN, kv)]
    linear = [*first, (query, HIDDEN), (HIDDEN, WIDE), (HIDDEN, WIDE), (WIDE, HIDDEN)]
    base = sum(2 * 2 * a * b for a, b in linear) * LAYERS - sum(2 * a * b for a, b in first)  # no gradient of the input
    adapter = sum(3 * 2 * RANK * (a + b) for a, b in linear) * LAYERS
    attention = 3 * 4 * pairs * query * LAYERS
    return tokens * (base + adapter) + attention + scored * 2 * 2 * VOCABULARY * HIDDEN


def share_of_bound(own: Gavel, repetitions: int) -> tuple[float, float]:
    """(share of the bound, GFLOP/s of the machine): medians; each step runs between two reference products."""
    one, other = torch.randn(2048, 2048), torch.randn(2048, 2048)
    shares, rates = [], []
    for _ in range(repetitions):
        first, own_seconds, second = (
            cpu_seconds(call) for call in (lambda: one @ other, own.step, lambda: one @ other)
        )
        rates.append(2 * 2 * 2048**3 / (first + second))
        shares.append(least_operations(own) / rates[-1] / own_seconds)
    return median(shares), median(rates) / 1e9


def added_mib(name: str, case: str) -> float:
    """Measured in a fresh process."""
    command = [sys.executable, __file__, "--added-by", name, "--case", case]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def print_added(name: str, case: Case, base: Path) -> None:
    own = Gavel(base, case)
    step = own.step if name == "gavel" else PEERS[name].beside(own, base).step
    if name == "TRL":
        import trl.trainer.grpo_trainer  # noqa: F401 - not the step's memory

    def mib(field: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))

    before = mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    step()
    print(mib("VmHWM") - before)


def growth(base: Path, repetitions: int) -> dict[str, Any]:
    """CPU seconds of groups of growing size with one prompt, and of the same completions without it."""
    sizes = (4, 8, 16, 32)
    steps = {str(n): Gavel(base, Case(512, 128, members=n)).step for n in sizes}
    steps["alone"] = Gavel(base, Case(1, 128, members=32)).step
    seconds = best_seconds(steps, repetitions)
    alone = seconds.pop("alone") / 32
    added = {f"{n} to {2 * n}": (seconds[str(2 * n)] - seconds[str(n)]) / n / alone for n in sizes[:-1]}
    return {"seconds": seconds, "completion_alone": alone, "added_over_alone": added}


def measure(base: Path, repetitions: int, titles: list[str]) -> dict[str, Any]:
    rows = {}
    for title in titles:
        case = CASES[title]
        print(f"{title} …", file=sys.stderr)
        own = Gavel(base, case)
        peers = {name: kind.beside(own, base) for name, kind in PEERS.items()}
        check_equal(own, peers)
        seconds = best_seconds({name: each.step for name, each in {**peers, "gavel": own}.items()}, repetitions)
        share, rate = share_of_bound(own, 3 * repetitions)
        added = {name: added_mib(name, title) for name in ["gavel", *PEERS]}
        rows[title] = {
            "cpu_seconds": seconds,
            "added_mib": added,
            "trl_over_gavel": seconds["TRL"] / seconds["gavel"],
            "bar": case.bar,
            "memory_of_trl": added["gavel"] / added["TRL"],
            "gflops_rate": rate,
            "share_of_bound": share,
        }
    return {"cases": rows, "growth": growth(base, repetitions)}


def missed(found: dict[str, Any]) -> list[str]:
    problems = []
    for title, row in found["cases"].items():
        if row["trl_over_gavel"] < row["bar"]:
            problems.append(f"{title}: {row['trl_over_gavel']:.2f} times TRL's speed, {row['bar']} wanted")
        if row["memory_of_trl"] > MEMORY_BAR:
            problems.append(f"{title}: {row['memory_of_trl']:.3f} of TRL's memory, {MEMORY_BAR} wanted")
        if row["share_of_bound"] < BOUND_BAR:
            problems.append(f"{title}: {row['share_of_bound']:.2f} of the arithmetic bound, {BOUND_BAR} wanted")
    for step, value in found["growth"]["added_over_alone"].items():
        if value > GROWTH_BAR:
            problems.append(f"growth {step}: {value:.2f} of a completion alone, {GROWTH_BAR} wanted")
    return problems


def show(found: dict[str, Any]) -> None:
    for title, row in found["cases"].items():
        times = "  ".join(f"{name} {value:.2f} s" for name, value in row["cpu_seconds"].items())
        added = "  ".join(f"{name} {value:.0f} MiB" for name, value in row["added_mib"].items())
        print(f"{title}\n  {times}  |  TRL / gavel {row['trl_over_gavel']:.1f}")
        print(f"  {added}  |  gavel / TRL {row['memory_of_trl']:.3f}")
        print(f"  {row['share_of_bound']:.2f} of the bound at {row['gflops_rate']:.0f} GFLOP/s")
    print("growth", json.dumps(found["growth"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--added-by", help="only print the MiB that this step adds")
    parser.add_argument("--case", choices=CASES, help="measure this case only")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        save_base(Path(directory))
        if given.added_by:
            print_added(given.added_by, CASES[given.case], Path(directory))
            return
        found = measure(Path(directory), given.repetitions, [given.case] if given.case else list(CASES))
    found["missed"] = missed(found)
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        show(found)
    for problem in found["missed"]:
        print(f"MISSED {problem}", file=sys.stderr)
    sys.exit(bool(found["missed"]))


if __name__ == "__main__":
    main()
