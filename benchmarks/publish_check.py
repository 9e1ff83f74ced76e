"""The check after every publication: healthy runs in bfloat16, and publications that never reached the sampler.

    OMP_NUM_THREADS=1 python benchmarks/publish_check.py                     36 layers, three learning rates, families
    OMP_NUM_THREADS=1 python benchmarks/publish_check.py --rates 1e-5 --families none

A random Qwen3 of 36 layers, 64 wide, is sampled, trained and published by the parts that a run has. At every step the
check is first asked before the adapter is published (a lost publication), then after it. The sampler is the embedded
engine, or one that stands for a server: it adds the adapter in bfloat16, sums in another order, and its log-probs
differ by `--jitter` (10^-3) nats from call to call. `stuck`: from step 5 on nothing is published any more; how many
publications until that is found.

`gap`: difference of sampler and learner a token, the largest mean and the largest of the run; `of the limit`: the
largest share of the mean gap in what ends a run (when the sampler is nearer to the earlier adapter, too). Exits with 1
for a healthy run that is ended, or where a lost publication is not found: at once, beside a server in the end.
"""

import argparse
import copy
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

from gavel.trainer.backends.proof import PublishCheck, PublishError, prove_engine
from gavel.trainer.config import LoraSettings, PolicySettings, TrainConfig
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.data.training_batch import Batch, TrainedSequence
from gavel.trainer.embedded import EMBEDDED_PATH
from gavel.trainer.engines import passes as lora_layers
from gavel.trainer.engines.protocol import SamplingRequest
from gavel.trainer.engines.transformers import TransformersEngine
from gavel.trainer.learner.learner import Learner
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.policy.policy import Policy

# isort: split
# After gavel.trainer, which silences a log line that bitsandbytes writes when peft imports it.
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.trainer.families import FAMILIES

GROUPS, MEMBERS, PROMPT, SAID = 2, 4, 24, 16
CONTEXT = 128
HEALTHY = 5
"""Steps before a sampler gets stuck."""
STUCK = 60
_STATE = ("_probe", "_gaps", "_movement")
"""What a check remembers from publication to publication."""


def deep_model() -> Any:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"vocab_size": 832, "hidden_size": 64, "num_hidden_layers": 36, "intermediate_size": 192}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return Qwen3ForCausalLM(Qwen3Config(**shape, initializer_range=0.1, tie_word_embeddings=True)).eval()


def family_model(name: str) -> Any:
    return next(each for each in FAMILIES if each.name == name).model()


class Run:
    """A run in bfloat16 over a random base model."""

    def __init__(self, model: Any, rate: float, directory: Path, *, server: float | None) -> None:
        """`server`: nats of jitter of what stands for one; None for the embedded engine."""
        model.config.save_pretrained(directory)
        for path in EMBEDDED_PATH.glob("token*"):
            (directory / path.name).write_bytes(path.read_bytes())
        for parameter in model.requires_grad_(False).parameters():
            parameter.data = parameter.data.bfloat16()
        settings = PolicySettings(dtype="bfloat16")
        self.policy = Policy(str(directory), LoraSettings(), "qwen3", settings, load=lambda *_: copy.deepcopy(model))
        self.learner = Learner(self.policy)
        self.engine = TransformersEngine(model, slots=GROUPS * MEMBERS, max_context=CONTEXT)
        self.engine.publish(self.policy, 0)
        self.config = TrainConfig(learning_rate=rate)
        self.check = PublishCheck(self, self.policy, self.learned)  # type: ignore[arg-type]
        self.jitter = server or 0.0
        self.draw = random.Random(0)
        self.noise = torch.Generator().manual_seed(0)
        prove_engine(self.engine, self.learned, self.policy.vocabulary, self.policy.dtype)

    @property
    def max_context(self) -> int:
        return self.engine.max_context

    def score(self, token_ids: list[int]) -> list[float]:
        found = torch.tensor(self.engine.score(token_ids))
        return (found + self.jitter * torch.randn(len(found), generator=self.noise)).tolist()

    @torch.no_grad()
    def learned(self, *batch: TokenSequence) -> torch.Tensor:
        return trained_logprobs(self.policy, batch)

    def learn(self) -> None:
        """Samples groups, rewards tokens of the first half of the vocabulary, and takes a step."""
        found: list[TrainedSequence] = []
        for group in range(GROUPS):
            prompt = [self.draw.randrange(3, 800) for _ in range(PROMPT)]
            futures = [
                self.engine.submit(SamplingRequest(prompt, frozenset(), SAID, 1.0, self.draw.randrange(2**60)))
                for _ in range(MEMBERS)
            ]
            said = [future.result(timeout=600) for future in futures]
            rewards = [sum(token < 400 for token in each.token_ids) / SAID for each in said]
            for each, reward in zip(said, rewards, strict=True):
                tokens = TokenSequence()
                tokens.extend(prompt)
                tokens.extend(each.token_ids, logprobs=each.logprobs)
                found.append(TrainedSequence(tokens, reward - sum(rewards) / MEMBERS, group))
        self.check.before(found)
        self.learner.step(Batch(found), self.config)

    def lost(self) -> bool:
        """Whether the check finds that the new adapter was not published; the check is as before afterwards."""
        kept = {name: copy.deepcopy(value) for name, value in vars(self.check).items() if name in _STATE}
        try:
            self.check.after()
        except PublishError:
            return True
        finally:
            vars(self.check).update(kept)
        return False


@contextmanager
def rounding_of_a_server(server: bool) -> Iterator[None]:
    """The embedded engine's layers sum in two halves and add the adapter, each rounded, as the learner's do not."""
    layers: Any = lora_layers.AdaptedLinear
    own = layers.forward

    def forward(layer: Any, x: torch.Tensor) -> torch.Tensor:
        factors = layer.factors
        if factors is None or type(layer._plain) is not torch.nn.Linear:
            return own(layer, x)
        weight, half = layer._plain.weight, x.shape[-1] // 2
        y = x[..., :half] @ weight[:, :half].T + x[..., half:] @ weight[:, half:].T
        if layer._plain.bias is not None:
            y = y + layer._plain.bias
        return y + x @ factors.a.T.to(x.dtype) @ factors.b.T.to(x.dtype) * factors.scale

    if server:
        layers.forward = forward
    try:
        yield
    finally:
        layers.forward = own


def measure(name: str, model: Any, rate: float, steps: int, *, server: float | None) -> bool:
    """Prints a row; whether all is as it should be."""
    start = time.process_time()
    with tempfile.TemporaryDirectory() as directory, rounding_of_a_server(server is not None):
        run = Run(copy.deepcopy(model), rate, Path(directory), server=server)
        gaps, shares, changes, proven, found, ended = [], [], [], 0, 0, ""
        for step in range(1, steps + 1):
            run.learn()
            found += run.lost()
            run.engine.publish(run.policy, step)
            rounding = max(run.check._gaps)
            try:
                metrics = run.check.after()
            except PublishError as error:
                ended = f"ENDED at step {step}: {error.message}"
                break
            gaps.append((metrics["publish_gap_mean"], metrics["publish_gap"]))
            shares.append(metrics["publish_gap_mean"] / (2 * max(0.02, rounding)))
            changes.append(metrics["publish_change"])
            proven += int(metrics["publish_proven"])
        run.engine.close()
        stuck = (
            stuck_for(copy.deepcopy(model), rate, Path(directory), server) if server is not None and not ended else 0
        )
    mean, most = max(gaps, default=(0.0, 0.0))[0], max((gap for _, gap in gaps), default=0.0)
    told = f"stuck found after {stuck}" if server is not None else ""
    print(
        f"{name:18s} lr {rate:.0e} {'embedded' if server is None else 'server':8s} gap mean {mean:.4f} max {most:.3f} "
        f"({max(shares, default=0):.2f} of the limit)  change "
        f"{min(changes, default=0):.4f} to {max(changes, default=0):.4f}  proven {proven}/{steps}  "
        f"lost found {found}/{steps}  {told}  {ended or 'healthy'}  {time.process_time() - start:.0f} CPU s",
        flush=True,
    )
    return not ended and (found == steps or (server is not None and 0 < stuck <= STUCK))


def stuck_for(model: Any, rate: float, directory: Path, jitter: float) -> int:
    """Lost publications until they are found; more than `STUCK` if they are not."""
    run = Run(model, rate, directory, server=jitter)
    try:
        for step in range(1, HEALTHY + STUCK + 1):
            run.learn()
            if step <= HEALTHY:
                run.engine.publish(run.policy, step)
            try:
                run.check.after()
            except PublishError:
                return step - HEALTHY
    finally:
        run.engine.close()
    return STUCK + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rates", type=float, nargs="*", default=[1e-5, 1e-4, 1e-3])
    parser.add_argument("--samplers", nargs="+", choices=["embedded", "server"], default=["embedded", "server"])
    parser.add_argument(
        "--families", nargs="+", default=["Gemma 4 E", "Gemma 3", "GPT-OSS", "Qwen3-MoE", "Llama 3"],
        help="names of the table in docs/models.md, 20 steps each; none for none",
    )  # fmt: skip
    parser.add_argument("--jitter", type=float, default=1e-3, help="nats by which a server's passes differ")
    given = parser.parse_args()
    torch.set_num_threads(1)
    right = [
        measure("36 layers", deep_model(), rate, given.steps, server=given.jitter if sampler == "server" else None)
        for sampler in given.samplers
        for rate in given.rates
    ]
    right += [
        measure(name, family_model(name), rate, 20, server=given.jitter if sampler == "server" else None)
        for name in given.families
        if name != "none"
        for sampler in given.samplers
        for rate in (1e-5, 1e-3)
    ]
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
