"""Memory of a learner's pass, and the number of tokens of a pass that fits.

    need = measure_pass(policy, memory, checkpointing=True)     # two small passes, over random tokens
    need.of(16_384)                                             # bytes over 16,384 unique tokens
    fitting_tokens(need, memory.free(), "cuda")

Memory is in proportion to tokens: all activations are rows of a token, and attention keeps no scores.
"""

from dataclasses import dataclass

import torch

from gavel.trainer.config import TrainConfig
from gavel.trainer.data.token_sequences import TokenSequence
from gavel.trainer.device_memory import DeviceMemory
from gavel.trainer.learner.logprobs import trained_logprobs
from gavel.trainer.policy.policy import Policy

MARGIN = 0.1
"""Share of the memory that is left for what is not counted: fragments, a GPU's context, longer attention."""
LEAST_TOKENS = 256
MOST_TOKENS = {"cpu": 16384, "cuda": 32768}
"""Larger micro-batches are no faster."""
_ENDLESS = 2**60
_PROBED = {"cpu": 512, "cuda": 2048}
"""Tokens of the larger pass that is measured; the other one has a quarter."""


@dataclass(frozen=True, slots=True)
class PassBytes:
    """Bytes of a pass and its backward pass, as a line over its tokens."""

    fixed: float
    per_token: float

    @classmethod
    def through(cls, small: tuple[int, int], large: tuple[int, int]) -> "PassBytes":
        """The line through two pairs of tokens and bytes; it rises, and begins no lower than 0."""
        per_token = max(1.0, (large[1] - small[1]) / max(1, large[0] - small[0]))
        return cls(max(0.0, small[1] - per_token * small[0]), per_token)

    def of(self, tokens: int) -> int:
        return round(self.fixed + self.per_token * tokens)

    def tokens(self, free: float) -> int:
        """The most tokens whose pass fits into `free` bytes; 0 when none does."""
        return max(0, int((free - self.fixed) / self.per_token))


def checkpoints_by_default(device: str) -> bool | None:
    """None on a GPU, whose memory is small beside its speed: in the passes that would not fit otherwise."""
    return None if device == "cuda" else False


def with_defaults(config: TrainConfig, device: str) -> TrainConfig:
    """The config with what bounds memory filled in, for a learner that nobody measured."""
    on, tokens = config.gradient_checkpointing, config.micro_batch_tokens
    if on is None and config.whole_pass_tokens is None:
        on = checkpoints_by_default(device)
    tokens = MOST_TOKENS[device] if tokens is None else tokens
    return config.model_copy(update={"gradient_checkpointing": on, "micro_batch_tokens": tokens})


def fitting_tokens(need: PassBytes, free: float, device: str) -> int:
    """The largest micro-batch for `free` bytes, within sane bounds."""
    return min(MOST_TOKENS[device], max(LEAST_TOKENS, need.tokens(free * (1 - MARGIN))))


def measure_pass(policy: Policy, memory: DeviceMemory, *, checkpointing: bool) -> PassBytes:
    """By two small passes of the learner; nothing is changed, and no random number is drawn.

    Without checkpointing even these may not fit, and then none does.
    The first pass of a device also allocates what stays, so one that is not measured goes before.
    """
    policy.checkpoint_gradients(checkpointing)
    most = min(_PROBED[policy.device_kind], policy.max_context)
    sizes = (most // 4, most)

    def one_pass(tokens: int) -> None:
        trained_logprobs(policy, [probe_sequence(tokens)]).sum().backward()
        for parameter in policy.parameters():
            parameter.grad = None

    try:
        one_pass(most // 4)
        small, large = ((tokens, memory.peak_of(lambda n=tokens: one_pass(n))) for tokens in sizes)
    except torch.OutOfMemoryError:
        if checkpointing:
            raise
        small = large = (1, _ENDLESS)
    return PassBytes.through(small, large)


def probe_sequence(tokens: int) -> TokenSequence:
    """A sequence to measure with. All but its first token are trained: no sequence makes the head work more."""
    return TokenSequence([0] * tokens, [False] + [True] * (tokens - 1), [-1.0] * tokens, [1.0] * tokens)
