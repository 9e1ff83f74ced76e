"""W&B Inference: the adapter as an artifact of the type lora, which W&B serves over its base when it is asked for.

    gavel deploy desk/clerk@12 wandb:my-team/my-project

The artifact's name is the record's and its alias the step; an artifact counts once all of its files have arrived. The
SDK repeats its requests and keeps the files' hashes, so what was uploaded before a crash is not uploaded again.
"""

import asyncio
from collections.abc import Callable, Mapping
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from gavel.base.extras import install_line
from gavel.base.secrets import without_secrets
from gavel.trainer.deploy.host import Deployment, Report, find_misfits, key_of
from gavel.trainer.deploy.record import AdapterFacts, DeployError, DeploymentRecord

T = TypeVar("T")
KEY_VARIABLE = "WANDB_API_KEY"
_START_SECONDS = 120.0
_UPLOAD_SECONDS = 3600
_INFERENCE = "https://api.inference.wandb.ai/v1"
_RANKS = range(1, 17)
_BASES = (
    "OpenPipe/Qwen3-14B-Instruct",
    "Qwen/Qwen2.5-14B-Instruct",
    "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.1-70B-Instruct",
)
_REGION = "coreweave-us"
"""The storage region of the artifact; Inference reads only from its own."""


class WandbHost:
    """A project of a team."""

    name = "wandb"
    remedies: Mapping[int, str] = {}

    def __init__(self, place: str, *, base: str = "") -> None:
        """`place`: team/project. `base`: the base as W&B Inference names it, where the run has another name for it."""
        self._entity, _, self._project = place.rstrip("/").partition("/")
        if not self._entity or not self._project or "/" in self._project:
            raise DeployError(
                f"{place!r} is no project of W&B", "Give wandb:TEAM/PROJECT; a personal account has none."
            )
        self.place = f"{self._entity}/{self._project}"
        self._base = base

    def check(self, adapter: AdapterFacts) -> list[str]:
        found = find_misfits("W&B Inference", adapter, ranks=_RANKS)
        if not self._base and adapter.base_model not in _BASES:
            found.append(
                f"its base is {adapter.base_model}; W&B Inference takes adapters of {', '.join(_BASES)}; of another "
                "one that it has taken since: --set base=NAME"
            )
        return found

    async def deploy(self, adapter: AdapterFacts, record: DeploymentRecord, report: Report) -> Deployment:
        artifact = self._artifact(record)

        if not await self._is_there(record):
            record.begin()
            report(f"uploading {adapter.size / 1e6:.1f} MB as {artifact}")
            await self._ask(lambda: self._log(adapter, record), f"{artifact} cannot be uploaded")
        return Deployment(self, record, _INFERENCE, f"wandb-artifact:///{artifact}", KEY_VARIABLE)

    async def status(self, record: DeploymentRecord) -> str:
        return "there" if await self._is_there(record) else "gone"

    async def undeploy(self, record: DeploymentRecord, report: Report) -> None:
        artifact = self._artifact(record)
        if await self._is_there(record):
            await self._ask(
                lambda: self._api().artifact(artifact, type="lora").delete(delete_aliases=True),
                f"{artifact} cannot be removed",
            )
            report(f"removed {artifact}")

    def costs(self, record: DeploymentRecord) -> str:
        return (
            "W&B Inference: billed by token (prices: wandb.ai/site/pricing/inference), nothing while it is idle but "
            f"the artifact's storage; to remove it: gavel undeploy {record.id}"
        )

    def _artifact(self, record: DeploymentRecord) -> str:
        return f"{self._entity}/{self._project}/{record.remote_name}:step{record.step}"

    async def _is_there(self, record: DeploymentRecord) -> bool:
        return await self._ask(
            lambda: self._api().artifact_exists(self._artifact(record), type="lora"), "W&B does not answer"
        )

    def _api(self) -> Any:
        import wandb

        return wandb.Api(overrides={"entity": self._entity, "project": self._project}, timeout=60)

    def _log(self, adapter: AdapterFacts, record: DeploymentRecord) -> None:
        import wandb

        base = {"wandb.base_model": self._base or adapter.base_model}
        artifact = wandb.Artifact(record.remote_name, type="lora", metadata=base, storage_region=_REGION)
        for file in adapter.files():
            artifact.add_file(str(file), policy="immutable", skip_cache=True)
        settings = wandb.Settings(
            mode="online",  # WANDB_MODE is for metrics
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
            init_timeout=_START_SECONDS,
            reinit="create_new",  # a run of the trainer may be open
        )
        place: dict[str, Any] = {"entity": self._entity, "project": self._project, "id": record.remote_name}
        with (
            TemporaryDirectory(prefix="gavel-wandb-", ignore_cleanup_errors=True) as scratch,
            wandb.init(**place, job_type="deploy", dir=scratch, settings=settings) as run,
        ):
            run.log_artifact(artifact, aliases=[f"step{record.step}"]).wait(timeout=_UPLOAD_SECONDS)

    async def _ask(self, ask: Callable[[], T], what: str) -> T:
        key = key_of(KEY_VARIABLE, "Take one from wandb.ai/authorize, and set it in .env.")
        try:
            from wandb.errors import Error
        except ImportError as error:
            raise DeployError("wandb is not installed, which this host needs", install_line("train")) from error
        try:
            return await asyncio.to_thread(ask)
        except (Error, ValueError, OSError, TimeoutError) as error:
            said = without_secrets((str(error).strip().splitlines() or [type(error).__name__])[0], {"KEY": key})
            raise DeployError(
                f"{what}: {said}",
                f"Check {KEY_VARIABLE} and the team's project {self._entity}/{self._project}; the same command goes on "
                "where it was.",
            ) from error


open_host = WandbHost
