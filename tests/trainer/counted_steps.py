"""A learner's steps, counted once for all plans of one policy: plans differ in what they make of them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gavel.trainer.learner.step_bytes import PassBytes
from gavel.trainer.memory import needs as memory_needs
from gavel.trainer.memory.needs import PlannedPolicy


@contextmanager
def counted_once() -> Iterator[None]:
    count, counted = memory_needs.learner_bytes, {}

    def once(policy: PlannedPolicy, *, device: str, checkpointing: bool) -> PassBytes:
        key = repr(policy.model), policy.dtype, policy.base_bytes, policy.max_context, device, checkpointing
        if key not in counted:
            counted[key] = count(policy, device=device, checkpointing=checkpointing)
        return counted[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_needs, "learner_bytes", once)
        yield
