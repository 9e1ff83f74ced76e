"""One LoRA step over a base of Qwen3-8B's shape on one GPU, against the same step on the padded batch.

    python benchmarks/learner_gpu.py
    python benchmarks/learner_gpu.py --all     # dense and experts, bfloat16 and 4 bits, and Liger, within 8 minutes

The base is random, made in bfloat16 on the device: nothing is downloaded. 8 groups of 8 over prompts of 2,048 tokens,
with completions of 256, are 32,768 unique tokens in one micro-batch. LoRA r16 on all linear layers, gradient
checkpointing; then without it where a pass fits into half of the free memory, as a run does by itself. The padded step
is the learner with another forward pass: transformers' over padded rows, all logits, no entropies. First the gradients
of both are compared with float32's, over eight layers; seconds are medians of whole steps.

MFU is 6 N T over seconds and peak: N the weights of the transformer's linear layers, T the unique tokens, 6 = 2 forward
+ 2 recomputed for checkpointing + 2 back (`mfu_without_recompute` counts 4); and 4 for each weight of the head and
each scored position. Attention and the adapter are not counted. Prints JSON; exits with 1 when the bar is missed.
`--shape moe` takes a base of Qwen3-30B-A3B's shape, with the experts that a token goes through as its weights, and no
bar. `--quantization 4bit` holds the linear layers in NF4 (experts, which transformers keep as one tensor, stay in
bfloat16), without a bar. `--liger` measures the step with Liger's kernels against the step without them, and compares
their gradients, in place of the padded batch. `--dry` runs the same code with a small base and no bar, also on a CPU.
`--all` prints its time plan, then measures each part in a process of its own, which is ended when its time is over; a
part that fails is a row with the reason, and the exit status is 1. The times are bounds, not measurements.
"""

import argparse
import importlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the hub's library is imported
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig
from transformers.quantizers.base import get_keys_to_not_convert

from gavel.trainer.config import LoraSettings, PolicySettings, TrainConfig
from gavel.trainer.data.packing import pack
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.data.training_batch import Batch, TrainedSequence
from gavel.trainer.device_memory import DeviceMemory
from gavel.trainer.embedded import EMBEDDED_POLICY
from gavel.trainer.learner.learner import Learner
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.learner.step_bytes import fitting_tokens, measure_pass
from gavel.trainer.policy.loading import prepare_4bit_layers, quantization_config
from gavel.trainer.policy.policy import Policy

MFU_BAR = 0.45
PARTS = (
    ("dense", None, 90),
    ("dense", "4bit", 105),
    ("moe", None, 100),
    ("moe", "4bit", 95),
    ("dense", "liger", 85),
)
"""Shape, quantization or Liger's kernels, and most seconds of each part of `--all`; 7 minutes and 55 seconds in all."""
MEMBERS = 8
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
    shape: dict[str, int]
    """Shape of the base, as arguments of Qwen3Config."""
    groups: int
    prompt: int
    completion: int
    repetitions: int

    @property
    def unique_tokens(self) -> int:
        return self.groups * (self.prompt + MEMBERS * self.completion)


QWEN3_8B = Case(
    {
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
    },
    groups=8,
    prompt=2048,
    completion=256,
    repetitions=3,
)
QWEN3_30B_A3B = replace(
    QWEN3_8B,
    shape=QWEN3_8B.shape
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
)
TINY = Case(
    {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 2048,
    },
    groups=2,
    prompt=64,
    completion=16,
    repetitions=1,
)
TINY_EXPERTS = replace(
    TINY, shape=TINY.shape | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
)


class Padded(Learner):
    """The learner with a forward pass over padded rows."""

    def _score(
        self, tokens: Sequence[TokenSequence], step_metrics: Any, *, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        device, width = self.policy.device, max(len(each.token_ids) for each in tokens)

        def padded(rows: list[list[Any]]) -> torch.Tensor:
            return torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)

        ids, real = padded([t.token_ids for t in tokens]), padded([[1] * len(t.token_ids) for t in tokens])
        trained = padded([t.sampled for t in tokens]).bool()[:, 1:]
        logits = self.policy.model(input_ids=ids, attention_mask=real, use_cache=False).logits[:, :-1]
        logprobs = torch.log_softmax(logits.float(), -1).gather(-1, ids[:, 1:, None])[..., 0][trained]
        return logprobs, torch.zeros_like(logprobs)


def in_4bits(model: Any, dtype: torch.dtype) -> Any:
    """The model with the layers in 4 bits that would be so when it was loaded."""
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


def random_policy(
    case: Case, quantization: Literal["4bit"] | None, *, liger: bool = False, precise: bool = False
) -> Policy:
    """The same weights at every call; `precise`: computed in float32."""

    def make(_: str, dtype: torch.dtype, device: str) -> Any:
        torch.manual_seed(0)
        with torch.device(device):
            kind = Qwen3MoeConfig if "num_experts" in case.shape else Qwen3Config
            config = kind(**case.shape, tie_word_embeddings=False, max_position_embeddings=40960)  # type: ignore[arg-type]
            drawn = torch.bfloat16 if device == "cuda" else dtype
            model = AutoModelForCausalLM.from_config(config, dtype=drawn).requires_grad_(False)
            for weight in model.parameters():  # not the frequencies of RoPE, which are float32 always
                weight.data = weight.data.to(dtype)
            model.config.dtype = dtype
        return in_4bits(model, dtype) if quantization else model

    settings = PolicySettings(use_liger_kernel=liger, dtype="float32" if precise else "auto")
    lora = LoraSettings(rank=16, alpha=32)
    policy = Policy(EMBEDDED_POLICY, lora, settings=settings, load=make)  # with a tokenizer that nobody asks
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(0.02 * torch.randn_like(parameter))  # PEFT's own are rounded to the base's type
    return policy


def make_batch(case: Case, policy: Policy) -> Batch:
    draw = random.Random(0)

    def words(count: int) -> list[int]:
        return [draw.randrange(policy.vocabulary) for _ in range(count)]

    batch = Batch()
    for group in range(case.groups):
        prompt = words(case.prompt)
        for advantage in torch.linspace(-1, 1, MEMBERS).tolist():
            tokens = TokenSequence()
            tokens.extend(prompt)
            tokens.extend(words(case.completion), logprobs=[0.0] * case.completion)
            batch.sequences.append(TrainedSequence(tokens, advantage, group))
    with torch.no_grad():
        sampler = iter(trained_logprobs(policy, [s.tokens for s in batch.sequences]).tolist())
    for sequence in batch.sequences:
        tokens = sequence.tokens
        tokens.logprobs = [next(sampler) + draw.gauss(0, 0.1) if own else 0.0 for own in tokens.sampled]
    return batch


def gradient(learner: Learner, batch: Batch, config: TrainConfig) -> torch.Tensor:
    """Of one step, flat, in float64 on the CPU."""
    learner.step(batch, config)
    return torch.cat([p.grad.flatten().cpu() for p in learner.policy.parameters() if p.grad is not None]).double()


def gradient_errors(case: Case, quantization: Literal["4bit"] | None, *, liger: bool = False) -> dict[str, float]:
    """Distances of one group's gradient from the padded batch's in float32, relative to its length.

    `own`, `padded` and with `liger` that of Liger's kernels: the same weights and tokens, in the type that is measured.
    Exits when one of ours is farther away than the padded batch's.
    """
    layers = min(COMPARED_LAYERS, case.shape["num_hidden_layers"])
    small = replace(case, shape=case.shape | {"num_hidden_layers": layers}, groups=1)
    config = step_config(small)
    policy = random_policy(small, quantization, precise=True)
    batch = make_batch(small, policy)
    truth = gradient(Padded(policy), batch, padded_rows(small))
    policy = random_policy(small, quantization)
    found = {"own": gradient(Learner(policy), batch, config)}
    found["padded"] = gradient(Padded(policy), batch, padded_rows(small))
    if liger:
        policy = random_policy(small, None, liger=True)
        found["liger"] = gradient(Learner(policy), batch, config)
    errors = {name: ((each - truth).norm() / truth.norm()).item() for name, each in found.items()}
    most = max(SAME, MOST_ERROR * errors["padded"])
    if not all(error <= most for error in errors.values()):
        raise SystemExit(f"not the same step: distances of the gradients from float32's {errors}")
    return errors


def own_choice(policy: Policy, case: Case) -> TrainConfig:
    """What a run would measure and take, if the learner had half of the memory that is free."""
    memory = DeviceMemory(policy.device)
    need = measure_pass(policy, memory, checkpointing=False)
    tokens = fitting_tokens(need, memory.free() / 2, policy.device_kind)
    return TrainConfig(learning_rate=1e-9, micro_batch_tokens=case.unique_tokens, whole_pass_tokens=tokens)


def step_config(case: Case) -> TrainConfig:
    return TrainConfig(learning_rate=1e-9, micro_batch_tokens=case.unique_tokens, gradient_checkpointing=True)


def padded_rows(case: Case) -> TrainConfig:
    return step_config(case).model_copy(update={"micro_batch_tokens": case.prompt + PADDED_ROWS * case.completion})


def timed(step: Callable[[], object], policy: Policy, repetitions: int) -> tuple[float, float | None]:
    """Median seconds, and peak GiB of GPU memory, base included."""
    gpu = policy.device.type == "cuda"
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
    return median(seconds), torch.cuda.max_memory_allocated() / 2**30 if gpu else None


def operations(policy: Policy, batch: Batch, *, recomputed: bool) -> float:
    """Floating-point operations of a step, by the formula above."""
    packed = pack([s.tokens for s in batch.sequences])
    layers = [m for m in policy.decoder().modules() if isinstance(m, torch.nn.Linear) and not m.weight.requires_grad]
    weights = sum(layer.in_features * layer.out_features for layer in layers)
    config: Any = policy.decoder().config
    routed = getattr(config, "num_experts_per_tok", 0)  # experts that a token goes through, of three products each
    if routed:
        weights += 3 * routed * config.hidden_size * config.moe_intermediate_size * config.num_hidden_layers
    head = policy.head().weight.numel()
    return (6 if recomputed else 4) * weights * len(packed.token_ids) + 4 * head * len(packed.predictors)


def measure(case: Case, peak: float, quantization: Literal["4bit"] | None = None) -> dict[str, Any]:
    """`peak` in FLOP/s."""
    errors = gradient_errors(case, quantization)
    policy = random_policy(case, quantization)
    batch = make_batch(case, policy)
    own, padded = Learner(policy), Padded(policy)
    losses = [own.step(batch, step_config(case))["loss"]]
    seconds, gib = timed(lambda: own.step(batch, step_config(case)), policy, case.repetitions)
    whole = own_choice(policy, case)
    whole_seconds, whole_gib = timed(lambda: own.step(batch, whole), policy, case.repetitions)
    padded_seconds, padded_gib = timed(  # five times as long, so once
        lambda: losses.append(padded.step(batch, padded_rows(case))["loss"]), policy, 1
    )
    unique = len(pack([s.tokens for s in batch.sequences]).token_ids)
    return {
        "device": torch.cuda.get_device_name() if policy.device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "layers_in_4_bits": sum(type(module).__name__ == "Linear4bit" for module in policy.model.modules()),
        "base_parameters": policy.parameter_count,
        "unique_tokens": unique,
        "trained_tokens": batch.trained_tokens,
        "padded_tokens": len(batch.sequences) * (case.prompt + case.completion),
        "losses": losses,
        "gradient_errors": errors,
        "seconds": seconds,
        "unique_tokens_per_second": unique / seconds,
        "mfu": operations(policy, batch, recomputed=True) / seconds / peak,
        "mfu_without_recompute": operations(policy, batch, recomputed=False) / seconds / peak,
        "peak_gib": gib,
        "whole_pass_tokens": whole.whole_pass_tokens,
        "whole_seconds": whole_seconds,
        "whole_mfu_without_recompute": operations(policy, batch, recomputed=False) / whole_seconds / peak,
        "whole_peak_gib": whole_gib,
        "padded_seconds": padded_seconds,
        "padded_peak_gib": padded_gib,
        "padded_over_own": padded_seconds / seconds,
    }


def measure_liger(case: Case, peak: float) -> dict[str, Any]:
    """Without and with Liger's kernels, one policy after the other, over the same batch. `peak` in FLOP/s."""
    errors = gradient_errors(case, None, liger=True)
    losses, timings, mfu, device = [], [], 0.0, ""
    batch: Batch | None = None
    for liger in (False, True):
        policy = random_policy(case, None, liger=liger)
        batch = batch or make_batch(case, policy)
        learner = Learner(policy)
        losses.append(learner.step(batch, step_config(case))["loss"])
        timings.append(timed(partial(learner.step, batch, step_config(case)), policy, case.repetitions))
        mfu = operations(policy, batch, recomputed=True) / timings[-1][0] / peak
        device = torch.cuda.get_device_name() if policy.device.type == "cuda" else "cpu"
        del policy, learner  # its memory is the next one's
    (seconds, gib), (liger_seconds, liger_gib) = timings
    return {
        "device": device,
        "torch": torch.__version__,
        "losses": losses,
        "gradient_errors": errors,
        "seconds": seconds,
        "peak_gib": gib,
        "liger_seconds": liger_seconds,
        "liger_peak_gib": liger_gib,
        "liger_mfu": mfu,
        "own_over_liger": seconds / liger_seconds,
    }


def in_own_process(arguments: Sequence[str], seconds: float) -> dict[str, Any]:
    """What this script prints with these arguments, and under `failed` why it did not end well or in time."""
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {seconds:.0f} seconds"}
    _, brace, rest = ended.stdout.partition("{")  # libraries may have printed something before
    found: dict[str, Any] = json.loads(brace + rest) if brace else {}
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1:] or [f"exit status {ended.returncode}"]
        found["failed"] = last[0]
    return found


def measure_all(arguments: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each of `PARTS`."""
    for shape, form, seconds in PARTS:
        print(f"at most {seconds:6g} s  {shape}, {form or 'bf16'}", file=sys.stderr)
    print(f"at most {sum(part[-1] for part in PARTS):6g} s  in all", file=sys.stderr, flush=True)
    rows = []
    options = {None: [], "4bit": ["--quantization", "4bit"], "liger": ["--liger"]}
    for shape, form, seconds in PARTS:
        own = ["--shape", shape, *options[form]]
        started = time.perf_counter()
        found = in_own_process([*own, *arguments], seconds)
        wall = time.perf_counter() - started
        quantization = form if form == "4bit" else None
        rows.append(
            {"shape": shape, "quantization": quantization, "liger": form == "liger", "wall_seconds": wall} | found
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="small base, no bar, also on a CPU")
    parser.add_argument("--all", action="store_true", help="both shapes, in bfloat16 and 4 bits")
    parser.add_argument("--shape", choices=["dense", "moe"], default="dense", help="Qwen3-8B or Qwen3-30B-A3B")
    parser.add_argument(
        "--peak", type=float, default=989, help="the device's dense bfloat16 TFLOP/s; default: H100, H200"
    )
    parser.add_argument("--quantization", choices=["4bit"], help="of the base; default: none")
    parser.add_argument("--liger", action="store_true", help="Liger's kernels against our own")
    given = parser.parse_args()
    if given.liger and given.quantization:
        raise SystemExit("--liger is measured in bfloat16.")
    if not given.dry and not torch.cuda.is_available():
        raise SystemExit("This needs a GPU; --dry does not.")
    if given.all:
        rows = measure_all([*(["--dry"] if given.dry else []), "--peak", str(given.peak)])
        print(json.dumps(rows, indent=1))
        raise SystemExit(any("failed" in row for row in rows))
    cases = {"dense": (QWEN3_8B, TINY), "moe": (QWEN3_30B_A3B, TINY_EXPERTS)}
    case = cases[given.shape][given.dry]
    if given.liger:
        print(json.dumps(measure_liger(case, given.peak * 1e12), indent=1))
        return
    found = measure(case, given.peak * 1e12, given.quantization)
    print(json.dumps(found, indent=1))
    barred = given.shape == "dense" and not given.dry and not given.quantization
    if barred and found["mfu"] < MFU_BAR:
        raise SystemExit(f"MISSED mfu {found['mfu']:.3f}, {MFU_BAR} wanted")


if __name__ == "__main__":
    main()
