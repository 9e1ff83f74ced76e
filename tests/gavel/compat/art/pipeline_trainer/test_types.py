"""Which checkpoints stay."""

from datetime import UTC, datetime

import pytest

from gavel.compat.art.pipeline_trainer import CheckpointInfo, CheckpointRetentionContext, keep_recent_and_top


def test_the_newest_and_the_best_stay() -> None:
    rewards = {1: 0.9, 2: 0.1, 3: 0.5, 4: None, 5: 0.2}
    infos = [
        CheckpointInfo(
            step=step,
            path=f"checkpoints/{step:04d}",
            created_at=datetime.now(UTC),
            metrics={} if reward is None else {"val/reward": reward},
        )
        for step, reward in rewards.items()
    ]
    context = CheckpointRetentionContext(current_step=6, checkpoints=infos)
    assert set(keep_recent_and_top(recent=2, top=1)(context)) == {1, 4, 5}
    assert set(keep_recent_and_top(recent=0, top=2)(context)) == {1, 3}
    with pytest.raises(ValueError, match="at least 0"):
        keep_recent_and_top(top=-1)
