"""Small groups, as environments send them."""

from typing import Any

from gavel.integrations.atropos.group import AtroposGroup
from gavel.integrations.atropos.server import TrainerInfo


def body(number: int = 0, size: int = 2, env_id: int | None = None, **changes: Any) -> dict[str, Any]:
    """A group of `size` members that is told from others by `number`."""
    tokens = [[1 + number % 50, 2, 3 + member] for member in range(size)]
    return {
        "tokens": tokens,
        "masks": [[-100, *row[1:]] for row in tokens],
        "scores": [number + member / size for member in range(size)],
        "env_id": env_id,
        **changes,
    }


def a_group(number: int = 0, size: int = 2, env_id: int | None = None, **changes: Any) -> AtroposGroup:
    return AtroposGroup.model_validate(body(number, size, env_id, **changes))


TRAINER = TrainerInfo(
    wandb_group="g", wandb_project="p", batch_size=4, max_token_len=64, checkpoint_dir="checkpoints", num_steps=10
)
ENVIRONMENT = {"max_token_length": 512, "desired_name": "desk", "weight": 1.0, "group_size": 2}
