"""What one GPU shows of Gavel in minutes: its tests, the learner at published shapes, a whole cycle, TRL's step.

    python benchmarks/gpu_day.py --out results            # every part; about nine minutes on an H100
    python benchmarks/gpu_day.py --out results --tiny     # the same code over small shapes, also on a CPU

Parts run in order of worth, in one process that is started anew where a part takes longer than its limit. Each part
writes `NAME.begun` after each measurement and `NAME.json` when it ends; a part that has the latter is not run again, so
a run that was cut goes on. A part that fails or takes too long keeps what it measured and says why, a missed bar stands
beside the figures, and the exit status is then 1. `--parts` chooses; `--again` measures what is there, too.

Bases are random, made in bfloat16 on the device, with the shapes of the published models; nothing is downloaded. A step
is the learner's, with LoRA r16 on all linear layers. `single` is one sequence of that length, with every token trained
but the first 16: what trainers without shared prefixes are measured with. `shared` is one group of 8 whose row has as
many unique tokens, three quarters of them the prompt. `mfu_prime` is prime-rl's formula: tokens a second times
(4 N + 6 n + 12 L H T) over the peak, N all weights, n the adapter's, L layers of size H, T tokens of context. `mfu` is
6 N T over seconds and peak, N the weights of the transformer's linear layers, T the unique tokens, 6 = 2 forward + 2
recomputed + 2 back (`mfu_without_recompute`: 4), and 4 for each weight of the head and each scored position;
attention and adapter are not counted.
"""

import argparse
import gc
import importlib
import importlib.util
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the hub's library is imported
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PEAK = 989e12
"""Dense bfloat16 FLOP/s of an H100 or H200."""
MFU_BAR = 0.45
"""Of Qwen3-8B's shape."""
PADDED_ROWS = 4
"""Sequences per padded micro-batch; the logits of more need tens of GiB."""
COMPARED_LAYERS = 8
"""Layers of the base whose gradients are compared: with float32's own, 30 billion weights would not fit."""
MOST_ERROR = 1.25
"""A gradient's distance from float32's, at most, as a multiple of the padded batch's, whose own varies by 5 % a run."""
SAME = 1e-4
"""Relative distance that is rounding in float32."""


@dataclass(frozen=True, slots=True)
class Case:
    shape: Mapping[str, Any]
    """Of the base, as arguments of its config."""
    prompt: int
    completion: int
    groups: int = 1
    members: int = 8
    repetitions: int = 2
    """Timed steps, after one that is not."""
    quantization: Literal["4bit"] | None = None
    experts: bool = False
    """Adapts the experts of a mixture, too."""
    pass_tokens: int | None = None
    """Most unique tokens of a micro-batch; None: all of them."""

    @property
    def unique_tokens(self) -> int:
        return self.groups * (self.prompt + self.members * self.completion)


QWEN3: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
SIZES: dict[str, dict[str, Any]] = {
    "0.6b": QWEN3
    | {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 3072},
    "4b": QWEN3 | {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 9728},
    "8b": QWEN3
    | {"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 12288}
    | {"tie_word_embeddings": False},
    "30b-a3b": QWEN3
    | {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4}
    | {"intermediate_size": 6144, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    | {"tie_word_embeddings": False},
}
TINY: dict[str, Any] = QWEN3 | {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 2048,
}
TINY_EXPERTS = TINY | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
PUBLISHED = {
    "0.6b-16k": {"tokens_per_second": 13300, "mfu": 0.109, "gib": 5.1},
    "0.6b-65k": {"tokens_per_second": 9970, "mfu": 0.252, "gib": 11.5},
    "4b-16k": {"tokens_per_second": 6230, "mfu": 0.217, "gib": 23.3},
    "4b-65k": {"tokens_per_second": 4160, "mfu": 0.374, "gib": 42.0},
}
"""prime-rl's figures on one H100, LoRA r16."""


def write(file: Path, found: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(found, indent=1))
    unfinished.rename(file)


class Figures(dict[str, Any]):
    """What a part found so far; its file has it too."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        write(self.file, self)

    def miss(self, bar: str) -> None:
        self["missed"] = [*self.get("missed", ()), bar]


def base_model(case: Case, dtype: Any, device: str) -> Any:
    """Random weights, the same at every call."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

    torch.manual_seed(0)
    with torch.device(device):
        kind = Qwen3MoeConfig if "num_experts" in case.shape else Qwen3Config
        drawn = torch.bfloat16 if device == "cuda" else dtype
        model = AutoModelForCausalLM.from_config(kind(**case.shape), dtype=drawn).requires_grad_(False)
        for weight in model.parameters():  # not the frequencies of RoPE, which are float32 always
            weight.data = weight.data.to(dtype)
        model.config.dtype = dtype
    return in_4bits(model, dtype) if case.quantization else model


def in_4bits(model: Any, dtype: Any) -> Any:
    """The model with the layers in 4 bits that would be so when it was loaded."""
    import torch
    from transformers.quantizers.base import get_keys_to_not_convert

    from gavel.trainer.policy.loading import prepare_4bit_layers, quantization_config

    bitsandbytes: Any = importlib.import_module("bitsandbytes")
    kept = get_keys_to_not_convert(model)
    for name, layer in [*model.named_modules()]:
        if type(layer) is torch.nn.Linear and name not in kept:
            weight = bitsandbytes.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
            with torch.device("meta"):
                narrow = bitsandbytes.nn.Linear4bit(
                    layer.in_features, layer.out_features, bias=False, compute_dtype=dtype, quant_type="nf4"
                )
            narrow.weight = weight.to(layer.weight.device)
            model.set_submodule(name, narrow)
    model.config.quantization_config = quantization_config("4bit", dtype)
    prepare_4bit_layers(model)
    return model


def random_policy(case: Case, *, precise: bool = False, liger: bool = True) -> Any:
    """The same weights at every call; `precise`: computed in float32. `liger`: by its kernels where they can run."""
    import torch

    from gavel.trainer.config import LoraSettings, PolicySettings
    from gavel.trainer.embedded import EMBEDDED_POLICY
    from gavel.trainer.policy.policy import Policy

    plain = precise or not liger or case.quantization is not None  # as a run has it
    settings = PolicySettings(dtype="float32" if precise else "auto", use_liger_kernel=False if plain else None)
    lora = LoraSettings(rank=16, alpha=32, experts=case.experts)
    policy = Policy(  # with a tokenizer that nobody asks
        EMBEDDED_POLICY, lora, settings=settings, load=lambda _, dtype, device: base_model(case, dtype, device)
    )
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(0.02 * torch.randn_like(parameter))  # PEFT's own are rounded to the base's type
    return policy


def make_batch(case: Case, vocabulary: int) -> Any:
    """Random tokens, with the sampler's log-probs where random weights have them."""
    from gavel.trainer.data.token_sequences import TokenSequence
    from gavel.trainer.data.training_batch import Batch, TrainedSequence

    draw, batch = random.Random(0), Batch()
    for group in range(case.groups):
        prompt = draw.choices(range(vocabulary), k=case.prompt)
        for member in range(case.members):
            tokens = TokenSequence()
            tokens.extend(prompt)
            logprobs = [draw.gauss(-math.log(vocabulary), 0.1) for _ in range(case.completion)]
            tokens.extend(draw.choices(range(vocabulary), k=case.completion), logprobs=logprobs)
            batch.sequences.append(TrainedSequence(tokens, 1 - 2 * member / max(1, case.members - 1), group))
    return batch


def step_config(case: Case, **more: Any) -> Any:
    from gavel.trainer.config import TrainConfig

    most = case.pass_tokens or case.unique_tokens
    return TrainConfig(**{"learning_rate": 1e-9, "micro_batch_tokens": most, "gradient_checkpointing": True} | more)


def own_choice(policy: Any, case: Case, share: float) -> Any:
    """What a run would measure and take, if the learner had this share of the memory that is free."""
    from gavel.trainer.device_memory import DeviceMemory
    from gavel.trainer.learner.step_bytes import fitting_tokens, measure_pass

    memory = DeviceMemory(policy.device)
    need = measure_pass(policy, memory, checkpointing=False)
    tokens = fitting_tokens(need, memory.free() * share, policy.device_kind)
    return step_config(case, gradient_checkpointing=None, whole_pass_tokens=tokens)


def padded_learner(policy: Any) -> Any:
    """The learner with a forward pass over padded rows: transformers' own, all logits, no entropies."""
    import torch

    from gavel.trainer.learner.learner import Learner

    class Padded(Learner):
        def _score(self, tokens: Sequence[Any], step_metrics: Any, *, entropy_gradient: bool = False) -> Any:
            device, width = self.policy.device, max(len(each.token_ids) for each in tokens)

            def padded(rows: list[list[Any]]) -> torch.Tensor:
                return torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)

            ids, real = padded([t.token_ids for t in tokens]), padded([[1] * len(t.token_ids) for t in tokens])
            trained = padded([t.sampled for t in tokens]).bool()[:, 1:]
            logits = self.policy.model(input_ids=ids, attention_mask=real, use_cache=False).logits[:, :-1]
            logprobs = torch.log_softmax(logits.float(), -1).gather(-1, ids[:, 1:, None])[..., 0][trained]
            return logprobs, torch.zeros_like(logprobs)

    return Padded(policy)


def padded_rows(case: Case, **more: Any) -> Any:
    return step_config(case, micro_batch_tokens=case.prompt + PADDED_ROWS * case.completion, **more)


def gradient_errors(case: Case) -> dict[str, float]:
    """Distances of one group's gradient from the padded batch's in float32, relative to its length.

    `own`, `padded`: the same weights and tokens, in the type that is measured. The loss clips nothing: rounding brings
    a token to the other side of a bound, and each one that does so changes the gradient by itself.
    """
    import torch

    from gavel.trainer.config import Reinforce
    from gavel.trainer.learner.learner import Learner

    layers = min(COMPARED_LAYERS, case.shape["num_hidden_layers"])
    small = replace(case, shape={**case.shape, "num_hidden_layers": layers}, groups=1)

    def gradient(learner: Any, config: Any) -> Any:
        learner.step(batch, config)
        return torch.cat([p.grad.flatten().cpu() for p in learner.policy.parameters() if p.grad is not None]).double()

    packed, padded = (configured(small, loss=Reinforce()) for configured in (step_config, padded_rows))
    policy = random_policy(small, precise=True)
    batch = make_batch(small, policy.vocabulary)
    truth = gradient(padded_learner(policy), padded)
    policy = random_policy(small)
    found = {
        "own": gradient(Learner(policy), packed),
        "padded": gradient(padded_learner(policy), padded),
    }
    return {name: ((each - truth).norm() / truth.norm()).item() for name, each in found.items()}


def timed(step: Callable[[], object], repetitions: int) -> tuple[list[float], float | None]:
    """Seconds of each step, and peak GiB of GPU memory, base included."""
    import torch

    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(repetitions):
        started = time.perf_counter()
        step()
        if gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return seconds, torch.cuda.max_memory_allocated() / 2**30 if gpu else None


def linear_weights(policy: Any) -> int:
    """Of the transformer's linear layers, frozen; of a mixture's experts those that a token goes through."""
    import torch

    layers = [m for m in policy.decoder().modules() if isinstance(m, torch.nn.Linear) and not m.weight.requires_grad]
    weights = sum(layer.in_features * layer.out_features for layer in layers)
    config: Any = policy.decoder().config
    routed = getattr(config, "num_experts_per_tok", 0)  # of three products each
    if routed:
        weights += 3 * routed * config.hidden_size * config.moe_intermediate_size * config.num_hidden_layers
    return weights


def rates(policy: Any, case: Case, batch: Any, seconds: float) -> dict[str, float]:
    """Tokens a second, and shares of the peak, by the formulas above."""
    from gavel.trainer.data.packing import pack

    packed = pack([s.tokens for s in batch.sequences])
    unique, rows = len(packed.token_ids), sum(len(s.tokens.token_ids) for s in batch.sequences)
    head = 4 * policy.head().weight.numel() * len(packed.predictors)
    linear, config = linear_weights(policy) * unique, policy.decoder().config
    weights = linear_weights(policy) + policy.head().weight.numel()
    adapter = sum(parameter.numel() for parameter in policy.parameters())
    context = case.prompt + case.completion
    attention = 12 * config.num_hidden_layers * config.hidden_size * context
    return {
        "unique_tokens": unique,
        "padded_tokens": rows,
        "trained_tokens": batch.trained_tokens,
        "unique_tokens_per_second": unique / seconds,
        "padded_tokens_per_second": rows / seconds,
        "mfu": (6 * linear + head) / seconds / PEAK,
        "mfu_without_recompute": (4 * linear + head) / seconds / PEAK,
        "mfu_prime": (4 * weights + 6 * adapter + attention) * unique / seconds / PEAK,
    }


def measured_steps(policy: Any, case: Case, config: Any) -> dict[str, Any]:
    """Of the learner over the case's batch. The first step, which prepares kernels, is not among the timed."""
    from gavel.trainer.learner.learner import Learner

    learner, batch = Learner(policy), make_batch(case, policy.vocabulary)
    losses: list[float] = []

    def step() -> None:
        losses.append(learner.step(batch, config)["loss"])

    (first,), _ = timed(step, 1)
    seconds, gib = timed(step, case.repetitions)
    found = {"first_seconds": first, "all_seconds": seconds, "seconds": min(seconds), "peak_gib": gib}
    return found | {"loss": losses[0]} | rates(policy, case, batch, min(seconds))


def profiled(policy: Any, case: Case, config: Any) -> dict[str, Any]:
    """Where the kernels' time of one step goes: the dearest by name, and sums by kind. Milliseconds."""
    from torch.profiler import ProfilerActivity, profile

    from gavel.trainer.learner.learner import Learner

    learner, batch = Learner(policy), make_batch(case, policy.vocabulary)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        learner.step(batch, config)
    kernels: dict[str, list[float]] = {}
    for event in recorded.events() or ():
        if str(event.device_type).endswith("CUDA") and not event.is_user_annotation:
            kernels.setdefault(event.name, []).append(event.time_range.elapsed_us() / 1000)
    sums: dict[str, float] = {}
    for name, times in kernels.items():
        kinds = {"attention": "flash|fmha|sdpa|cudnn", "products": "nvjet|gemm|cutlass|xmma|splitK"}
        kind = next((kind for kind, words in kinds.items() if re.search(words, name, re.I)), "elementwise and others")
        sums[kind] = sums.get(kind, 0.0) + sum(times)
    dearest = sorted(kernels, key=lambda name: -sum(kernels[name]))[:14]
    rows = [{"kernel": name[:110], "ms": sum(kernels[name]), "calls": len(kernels[name])} for name in dearest]
    return {"kernels_ms": sum(sums.values()), "by_kind_ms": sums, "dearest": rows}


def published_part(size: str, length: int, tiny: bool, found: Figures) -> None:
    """The step at a shape of which figures are published: one long sequence, and a group over a shared prompt."""
    name = f"{size}-{length // 1000}k"
    shape, tokens = (TINY, 512) if tiny else (SIZES[size], length)
    single = Case(shape, 16, tokens - 16, members=1, repetitions=1 if length > 50_000 else 2)
    shared = replace(single, prompt=tokens * 3 // 4, completion=tokens // 32, members=8)
    policy = random_policy(single)
    config = own_choice(policy, single, 1.0)
    found["published"] = PUBLISHED[name]
    found["whole_pass_tokens"] = config.whole_pass_tokens
    found["single"] = measured_steps(policy, single, config)
    found["times_published"] = found["single"]["unique_tokens_per_second"] / PUBLISHED[name]["tokens_per_second"]
    found["single_checkpointed"] = (
        measured_steps(policy, single, step_config(single)) if tokens <= config.whole_pass_tokens else "the same"
    )
    found["shared"] = measured_steps(policy, shared, config)
    if name == "4b-16k":
        found["profile"] = profiled(policy, single, config)


def dense_part(tiny: bool, found: Figures) -> None:
    """Qwen3-8B: 8 groups of 8 over prompts of 2,048 tokens, completions of 256; and the same step over padded rows."""
    case = Case(TINY, 64, 16, groups=2) if tiny else Case(SIZES["8b"], 2048, 256, groups=8)
    errors = found["gradient_errors"] = gradient_errors(case)
    if not errors["own"] <= max(SAME, MOST_ERROR * errors["padded"]):
        found.miss("gradient")
    free_memory()
    policy = random_policy(case)
    found["checkpointed"] = measured_steps(policy, case, step_config(case))
    config = own_choice(policy, case, 0.5)
    found["whole_pass_tokens"] = config.whole_pass_tokens
    found["chosen"] = measured_steps(policy, case, config)
    found["profile"] = profiled(policy, case, config)
    learner, batch = padded_learner(policy), make_batch(case, policy.vocabulary)
    losses: list[float] = []
    (seconds,), gib = timed(lambda: losses.append(learner.step(batch, padded_rows(case))["loss"]), 1)
    found["padded"] = {"seconds": seconds, "peak_gib": gib, "loss": losses[0]}
    found["padded_over_chosen"] = seconds / found["chosen"]["seconds"]
    if not tiny and max(found["checkpointed"]["mfu"], found["chosen"]["mfu_without_recompute"]) < MFU_BAR:
        found.miss(f"{MFU_BAR} of the peak")


def liger_part(tiny: bool, found: Figures) -> None:
    """Qwen3-8B's step without Liger's kernels; `dense` takes them where they are installed."""
    case = Case(TINY, 64, 16, groups=2) if tiny else Case(SIZES["8b"], 2048, 256, groups=8)
    policy = random_policy(case, liger=False)
    found["installed"] = importlib.util.find_spec("liger_kernel") is not None
    found["without"] = measured_steps(policy, case, own_choice(policy, case, 0.5))


def narrow_part(tiny: bool, found: Figures) -> None:
    """Qwen3-8B with its linear layers in NF4, a step of half as many tokens."""
    case = Case(TINY, 64, 16, groups=2) if tiny else Case(SIZES["8b"], 2048, 256, groups=4)
    started = time.perf_counter()
    policy = random_policy(replace(case, quantization="4bit"))
    found["seconds_to_make"] = time.perf_counter() - started
    found["layers_in_4_bits"] = sum(type(module).__name__ == "Linear4bit" for module in policy.model.modules())
    found["checkpointed"] = measured_steps(policy, replace(case, repetitions=1), step_config(case))


def mixture_part(tiny: bool, found: Figures) -> None:
    """Qwen3-30B-A3B with adapted experts, and with the other linear layers adapted alone."""
    case = Case(TINY_EXPERTS, 64, 16, groups=2)
    if not tiny:
        case = Case(SIZES["30b-a3b"], 2048, 256, groups=4, repetitions=1, pass_tokens=8192)
    for name, experts in (("experts", True), ("attention", False)):
        own = replace(case, experts=experts)
        policy = random_policy(own)
        adapter = {"adapter_parameters": sum(parameter.numel() for parameter in policy.parameters())}
        found[name] = adapter | measured_steps(policy, own, step_config(own))
        del policy
        free_memory()


def attention_part(tiny: bool, found: Figures) -> None:
    """Attention alone, forward and backward over one causal sequence: PyTorch's flash kernel and cuDNN's."""
    import torch

    from gavel.trainer.kernels import varlen_attention as varlen

    if not torch.cuda.is_available():
        found["skipped"] = "these kernels need a GPU"
        return
    found["cudnn_agrees"] = varlen._cudnn_agrees(32, 8, 128, torch.bfloat16)
    for length in (2048, 16384, 65536):
        torch.manual_seed(0)
        query, key, value, gradient = (
            torch.randn(length, heads, 128, device="cuda", dtype=torch.bfloat16) for heads in (32, 8, 8, 32)
        )
        segment = importlib.import_module("gavel.trainer.data.packing").Segment(0, length, length)
        (level,) = varlen.levels([segment], query.device)
        ways = {"flash": (varlen.flash, varlen.flash_backward), "chosen": (varlen.forward, varlen.backward)}
        results = {}
        for name, (forward, backward) in ways.items():
            row = replace(level, long_runs=()) if name == "flash" else [level]

            def once(ahead: Any, back: Any, row: Any, given: Any) -> Any:
                out, normaliser = ahead(*given[1:], row, 128**-0.5)
                return out, back(given[0], (*given[1:], out, normaliser), row, 128**-0.5)

            both_ways = partial(once, forward, backward, row, (gradient, query, key, value))
            results[name] = both_ways()
            ahead = timed(partial(forward, query, key, value, row, 128**-0.5), 5)[0]
            both = timed(both_ways, 5)[0]
            operations = 2 * length**2 * 32 * 128  # causal: half of 4 L² a head's size
            found[f"{name}-{length}"] = {
                "forward_ms": 1000 * min(ahead),
                "both_ms": 1000 * min(both),
                "forward_tflops": operations / min(ahead) / 1e12,
                "both_tflops": 3.5 * operations / min(both) / 1e12,
            }
        (one, ones), (other, others) = results.values()
        found[f"difference-{length}"] = [
            ((a.float() - b.float()).norm() / a.float().norm()).item()
            for a, b in zip((one, *ones), (other, *others), strict=True)
        ]


def tests_part(tiny: bool, found: Figures) -> None:
    """The tests that need a GPU; on a CPU they are skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    files = ["test_packed_attention.py", "test_lora_experts.py"]
    command += [str(ROOT / "tests/trainer/kernels" / file) for file in files]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = ended.stdout.strip().splitlines() or [ended.stderr[-2000:]]
    found["ended"] = lines[-1]
    if ended.returncode not in (0, 5):
        raise RuntimeError("\n".join(lines[-40:] + ended.stderr.splitlines()[-10:]))


def cycle_part(real: bool, tiny: bool, found: Figures) -> None:
    """A run that is killed after two steps and goes on: rollouts, judge, step, publish proof.

    `real`: SmolLM2-135M-Instruct on one sentence, or where `tiny` the tool caller on README's scenario; otherwise the
    embedded policy at the returns desk, few tasks a step.
    """
    own = Path(os.environ["GPU_DAY_SCRATCH"]) / ("real" if real else "desk")
    own.mkdir(parents=True, exist_ok=True)
    small = [
        "--judge",
        "stand-in",
        "--tasks",
        "2",
        "--group-size",
        "4",
        "--evaluation-tasks",
        "4",
        "--max-tokens",
        "64",
        "--steps",
        "3",
    ]
    what = ["train", "returns_desk", *small]
    if real:
        own_job = ["train", str(ROOT / "examples" / "returns.py"), "--model", "tool-caller", *small]
        what = own_job if tiny else ["demo", "--real", "--steps", "6"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    wanted = ("step", "logprob_drift", "publish_gap_mean", "publish_change", "publish_proven", "success", "reward")
    started = time.perf_counter()

    def rows(split: str) -> list[dict[str, Any]]:
        files = [*own.glob("runs/*/*/metrics.jsonl")]
        lines = [line for line in files[0].read_text().splitlines() if line.endswith("}")] if files else []
        return [row for row in map(json.loads, lines) if row["split"] == split]

    def run(most: float) -> None:
        """Until it ends, or has trained for so many steps."""
        with (own / "log").open("w") as log:
            command = [sys.executable, "-m", "gavel", *what]
            process = subprocess.Popen(command, cwd=own, env=environment, stdout=log, stderr=subprocess.STDOUT)
            while process.poll() is None and len(found.get("steps", ())) < most:
                time.sleep(0.05)
                if len(steps := rows("train")) > len(found.get("steps", ())):
                    found["steps"] = [{name: row.get(name) for name in wanted} for row in steps]
            process.kill()
            if (process.wait() and most == math.inf) or not found.get("steps"):
                raise RuntimeError((own / "log").read_text()[-3000:])

    run(2)
    found["killed_after_steps"], found["seconds_until_the_kill"] = len(rows("train")), time.perf_counter() - started
    run(math.inf)
    found["steps"] = [{name: row.get(name) for name in wanted} for row in rows("train")]
    found["seconds_in_all"] = time.perf_counter() - started
    found["times"] = rows("times")


def trl_part(tiny: bool, found: Figures) -> None:
    """TRL's GRPO loss with its fused head, and ours, over the same group of 8, at Qwen3-0.6B's shape."""
    import torch

    from benchmarks.learner import CLIP, Trl
    from gavel.trainer.config import ClippedSurrogate
    from gavel.trainer.learner.learner import Learner

    case = Case(TINY, 64, 16) if tiny else Case(SIZES["0.6b"], 1024, 256)
    policy = random_policy(case)
    batch = make_batch(case, policy.vocabulary)
    config = step_config(case, gradient_checkpointing=False, loss=ClippedSurrogate(clip_low=CLIP, clip_high=CLIP))
    learner = Learner(policy)
    adapter = {name: weight for name, weight in policy.model.state_dict().items() if "lora_" in name}
    peer = Trl(base_model(case, policy.dtype, policy.device.type), adapter, batch, rank=16)
    found["losses"] = {"own": learner.step(batch, config)["loss"], "trl": peer.step()}
    gradients = [
        torch.cat([p.grad.flatten() for p in each if p.grad is not None]).double()
        for each in (policy.parameters(), peer.parameters)
    ]
    found["cosine_of_gradients"] = torch.cosine_similarity(*gradients, 0).item()
    for name, step in (("own", lambda: learner.step(batch, config)), ("trl", peer.step)):
        seconds, gib = timed(step, 1 if tiny else 5)
        found[name] = {"seconds": min(seconds), "peak_gib": gib} | rates(policy, case, batch, min(seconds))
    found["trl_over_own"] = found["trl"]["seconds"] / found["own"]["seconds"]


PARTS: dict[str, tuple[Callable[[bool, Figures], None], float]] = {
    "tests": (tests_part, 60),
    "attention": (attention_part, 30),
    "0.6b-16k": (partial(published_part, "0.6b", 16384), 40),
    "4b-16k": (partial(published_part, "4b", 16384), 50),
    "0.6b-65k": (partial(published_part, "0.6b", 65536), 60),
    "dense": (dense_part, 90),
    "4b-65k": (partial(published_part, "4b", 65536), 110),
    "cycle": (partial(cycle_part, False), 90),
    "mixture": (mixture_part, 90),
    "4bit": (narrow_part, 60),
    "trl": (trl_part, 40),
    "real-cycle": (partial(cycle_part, True), 120),
    "liger": (liger_part, 50),
}
"""What is measured, and the most seconds that it may take."""


def free_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def run_here(names: Sequence[str], out: Path, tiny: bool) -> None:
    """The parts one after the other; `now` in `out` says which one it is in."""
    import torch

    for name in names:
        (out / "now").write_text(name)
        started, found = time.time(), Figures(out / f"{name}.begun")
        found["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        found["torch"] = torch.__version__
        try:
            PARTS[name][0](tiny, found)
        except Exception:  # a part that fails is a result, and the others are measured
            found["failed"] = traceback.format_exc()[-3000:]
        free_memory()
        found["wall_seconds"] = time.time() - started
        found.file.rename(out / f"{name}.json")


def run_all(names: Sequence[str], out: Path, tiny: bool, limit_factor: float) -> None:
    """In a process of its own, which is ended where a part takes too long, and started again for those after it."""
    left = list(names)
    while left:
        (out / "now").write_text(left[0])
        command = [sys.executable, __file__, "--here", "--out", str(out), "--parts", *left, *["--tiny"][: int(tiny)]]
        worker = subprocess.Popen(command, start_new_session=True)
        part, since = left[0], time.monotonic() + 15.0  # for the imports
        try:
            while worker.poll() is None:
                time.sleep(0.1)
                now = (out / "now").read_text() or part
                if now != part:
                    print(f"{part}: {time.monotonic() - since:.0f} s", file=sys.stderr, flush=True)
                    part, since = now, time.monotonic()
                if time.monotonic() - since > PARTS[part][1] * limit_factor:
                    break
        finally:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)  # with what the part started
                worker.wait()
        if not (out / f"{part}.json").exists():
            limit = PARTS[part][1] * limit_factor
            why = f"ended with status {worker.returncode}" if worker.returncode != -9 else f"not done in {limit:.0f} s"
            begun = out / f"{part}.begun"
            found = json.loads(begun.read_text()) if begun.exists() else {}
            write(out / f"{part}.json", found | {"failed": why})
            begun.unlink(missing_ok=True)
        left = left[left.index(part) + 1 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of the results")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS], help="default: all")
    parser.add_argument("--tiny", action="store_true", help="small shapes, also on a CPU")
    parser.add_argument("--again", action="store_true", help="also the parts that have a result")
    parser.add_argument("--limit-factor", type=float, default=1.0, help="multiplies the parts' limits")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    out: Path = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("GPU_DAY_SCRATCH", str(out / "scratch"))
    if given.here:
        return run_here(given.parts, out, given.tiny)
    files = {name: out / f"{name}.json" for name in given.parts}
    if given.again:
        for file in files.values():
            file.unlink(missing_ok=True)
    left = [name for name, file in files.items() if not file.exists()]
    most = sum(PARTS[name][1] for name in left) * given.limit_factor
    print(f"at most {most:.0f} s: {' '.join(left)}", file=sys.stderr)
    run_all(left, out, given.tiny, given.limit_factor)
    found = {name: json.loads(file.read_text()) for name, file in files.items()}
    print(json.dumps(found, indent=1))
    failed = [f"failed: {name}" for name, each in found.items() if "failed" in each]
    missed = [f"missed in {name}: {bar}" for name, each in found.items() for bar in each.get("missed", ())]
    raise SystemExit("\n".join(failed + missed) or 0)


if __name__ == "__main__":
    main()
