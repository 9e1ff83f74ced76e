"""A checkpoint that a host serves."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from gavel.base.network import is_on_this_machine
from gavel.trainer.deploy.credentials import key_of
from gavel.trainer.deploy.errors import DeployError
from gavel.trainer.deploy.record import DeploymentRecord

if TYPE_CHECKING:
    from gavel.trainer.deploy.host import DeployHost

_NO_KEY = "none"
"""What a client sends to a server that needs no key; the openai package wants one."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where the policy of one step is served, OpenAI-compatible."""

    host: "DeployHost"
    record: DeploymentRecord
    base_url: str
    model_id: str
    """What to pass as `model` in a request."""
    key_variable: str | None
    """The environment variable that holds the API key; None for a server without one."""
    stop_hint: str
    """What it costs and how to stop it."""

    @property
    def id(self) -> str:
        """Of its record; what `gavel undeploy` takes."""
        return self.record.id

    def openai_client(self) -> AsyncOpenAI:
        """A client of the endpoint; its key is read from the environment now. Raises `DeployError` without one."""
        if not self.base_url:
            raise DeployError(f"{self.model_id} is published, and not served", "Deploy it to a host that serves it.")
        key = key_of(self.key_variable) if self.key_variable else _NO_KEY
        http_client = DefaultAsyncHttpxClient(trust_env=not is_on_this_machine(self.base_url))  # no proxy for loopback
        return AsyncOpenAI(base_url=self.base_url, api_key=key, http_client=http_client)

    async def undeploy(self) -> None:
        """Stops serving and removes what was made for it; doing so again changes nothing. Raises `DeployError`."""
        from gavel.trainer.deploy.deploy import undeploy

        await undeploy(self.record, host=self.host)
