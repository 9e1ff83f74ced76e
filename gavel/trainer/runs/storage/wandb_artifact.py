"""Versions of artifacts in Weights & Biases, logged by its own SDK: what a store of checkpoints and a deployment share.

A version counts once all of its files have arrived. The server keeps the files' hashes, so what an upload that was cut
off has sent is not sent again. WANDB_MODE is for metrics: an artifact is always logged online.
"""

# pyright: reportMissingTypeStubs=false

import shutil
import tempfile
from typing import Any

KEY_VARIABLE = "WANDB_API_KEY"
_START_SECONDS = 120.0
_UPLOAD_SECONDS = 3600


def artifacts_api(entity: str, project: str) -> Any:
    """The SDK's reading side. Raises the SDK's errors."""
    import wandb

    return wandb.Api(overrides={"entity": entity, "project": project}, timeout=60)


def log_artifact(artifact: Any, entity: str, project: str, *, run_id: str, job_type: str, aliases: list[str]) -> None:
    """Uploads a version from the run `run_id`, which another attempt takes up. Raises the SDK's errors."""
    import wandb

    scratch = tempfile.mkdtemp(prefix="gavel-wandb-")
    settings = wandb.Settings(
        mode="online",
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        x_disable_stats=True,
        init_timeout=_START_SECONDS,
        reinit="create_new",  # a run of the trainer may be open
    )
    try:
        with wandb.init(
            entity=entity, project=project, id=run_id, job_type=job_type, dir=scratch, settings=settings
        ) as run:
            run.log_artifact(artifact, aliases=aliases).wait(timeout=_UPLOAD_SECONDS)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
