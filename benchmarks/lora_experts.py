"""A gradient of LoRA over the stacked experts of a mixture: Gavel's product against PEFT's own, in CPU seconds.

    python benchmarks/lora_experts.py [--tokens 2048] [--rounds 5]

One experts module of Qwen3-MoE's kind, forward and backward, one thread; both by turns in each round. PEFT's own
forward makes W + scale * B A of every expert and a gradient of that size; it is taken over transformers' grouped
product, the faster of its two. The memory is what the process grew by at most, of a process that does one of the two
alone (Linux).
"""

import argparse
import multiprocessing
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import ParamWrapper
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from gavel.trainer.kernels.fused_layers import compute_experts

HIDDEN, INNER, EXPERTS, CHOSEN, RANK = 1024, 384, 64, 8, 16
MIB = 1024**2


def layer(*, ours: bool) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=HIDDEN,
        moe_intermediate_size=INNER,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
    )
    targets = ["experts.gate_up_proj", "experts.down_proj"]
    base = Qwen3MoeForCausalLM(config).requires_grad_(False)
    model = get_peft_model(base, LoraConfig(r=RANK, target_modules=[], target_parameters=targets))
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.02)
    if ours:
        compute_experts(model)
    return next(module for module in model.modules() if isinstance(module, ParamWrapper))


def gradient(experts: Any, tokens: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    x = torch.randn(tokens, HIDDEN, requires_grad=True)
    shares, chosen = torch.rand(tokens, EXPERTS).topk(CHOSEN)
    weights = [parameter for parameter in experts.parameters() if parameter.requires_grad]
    return list(torch.autograd.grad(experts(x, chosen, shares).square().mean(), [x, *weights]))


def seconds(experts: Any, tokens: int) -> float:
    before = time.process_time()
    gradient(experts, tokens)
    return time.process_time() - before


def growth(ours: bool, tokens: int, found: Any) -> None:
    experts = layer(ours=ours)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    gradient(experts, tokens)
    found.put(memory("VmHWM") - before)


def memory(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    layers = {"Gavel": layer(ours=True), "PEFT": layer(ours=False)}
    mine, theirs = (gradient(each, asked.tokens) for each in layers.values())
    gap = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(mine, theirs, strict=True))
    times: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(asked.rounds):
        for name, each in layers.items():
            times[name].append(seconds(each, asked.tokens))
    context = multiprocessing.get_context("spawn")
    grown = {}
    for name in layers:
        queue = context.Queue()
        process = context.Process(target=growth, args=(name == "Gavel", asked.tokens, queue))
        process.start()
        grown[name] = queue.get()
        process.join()
    print(f"{EXPERTS} experts {HIDDEN} x {INNER}, {CHOSEN} a token, rank {RANK}, {asked.tokens} tokens, float32")
    print(f"largest difference of a gradient, of the largest: {gap:.1e}")
    for name in layers:
        print(f"{name:6} {statistics.median(times[name]):6.2f} CPU s  {grown[name] / MIB:7.0f} MiB more")
    print(f"PEFT / Gavel: {statistics.median(b / a for a, b in zip(*times.values(), strict=True)):.2f}")


if __name__ == "__main__":
    main()
