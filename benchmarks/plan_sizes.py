"""Memory and time at best of a step on one GPU, for three sizes of Qwen3: the table of docs/tutorials/one-gpu.md.

    python benchmarks/plan_sizes.py            # a minute or two for each size

Memory is `gavel plan`'s, over the published shapes (nothing is downloaded). The seconds of a step are lower bounds by
arithmetic, not measurements: training 6 N T operations (2 forward, 2 recomputed, 2 back) at 36 % of the GPU's peak, as
an H100 reached; sampling reads the weights once for each token of a wave of conversations, at the full memory
bandwidth. N: parameters, T: tokens of a step.
"""

import json
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

GROUPS, GROUP_SIZE, TOKENS, SAMPLED = 16, 8, 512, 200
"""Groups of a step, rollouts of a group, tokens of a rollout, and how many of these are sampled."""
SHARE_OF_PEAK = 0.36


@dataclass(frozen=True)
class Gpu:
    name: str
    gib: int
    flops: float
    """Dense bfloat16 operations a second."""
    bandwidth: float
    """Bytes a second."""


CASES = (
    (
        "Qwen3-0.6B",
        Gpu("T4-class, 16 GiB", 16, 65e12, 320e9),
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "tie_word_embeddings": True,
        },
    ),
    (
        "Qwen3-4B",
        Gpu("RTX 4090, 24 GiB", 24, 165e12, 1008e9),
        {
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "tie_word_embeddings": True,
        },
    ),
    (
        "Qwen3-8B",
        Gpu("H100, 80 GiB", 80, 989e12, 3350e9),
        {
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "tie_word_embeddings": False,
        },
    ),
)
COMMON = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "torch_dtype": "bfloat16",
}


def plan(shape: dict, gpu: Gpu) -> dict:
    """What `gavel plan --json` says of this shape."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps({**COMMON, **shape}))
        command = [sys.executable, "-m", "gavel", "plan", folder, "--gpu", str(gpu.gib), "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if not done.stdout:
            raise SystemExit(done.stderr)
        return json.loads(done.stdout)


def main() -> None:
    print("model        GPU                fits  GiB of it  conversations  s a step, at best (sampling + training)")
    for name, gpu, shape in CASES:
        told = plan(shape, gpu)
        parameters = told["parameters"]
        waves = math.ceil(GROUPS * GROUP_SIZE / max(told["conversations"], 1))
        sampling = waves * SAMPLED * 2 * parameters / gpu.bandwidth
        training = 6 * parameters * GROUPS * GROUP_SIZE * TOKENS / (SHARE_OF_PEAK * gpu.flops)
        print(
            f"{name:12} {gpu.name:18} {'yes' if told['fits'] else 'no':4}  {told['needed'] / 2**30:9.1f}  "
            f"{told['conversations']:13}  {sampling:.0f} + {training:.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
