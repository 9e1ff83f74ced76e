"""What an API key may do, as plain data. Each field is documented once, below it."""

from pydantic import BaseModel, ConfigDict, Field

from gavel.judge.service.schemas.numbers import SetInteger, SetNumber
from gavel.judge.service.schemas.score_bodies import Project


class KeyScope(BaseModel):
    """Projects, judges and limits of one API key."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    projects: list[Project] = []
    """Projects that the key may use. Requests that name none are filed under the first one. Default: all."""
    judges: list[str] = []
    """Judge models that may judge for the key. Default: all that the service allows."""
    max_cost_usd: SetNumber | None = Field(default=None, gt=0)
    """US dollars that its judgements may cost in all. The groups that are being judged at the limit are finished; those
    that were accepted and not begun are left unscored, with the reason."""
    requests_per_minute: SetInteger | None = Field(default=None, ge=1)
    """Requests a minute to one process of the service; as many may come at once."""
    concurrent_groups: SetInteger | None = Field(default=None, ge=1)
    """Groups of the key that may be unfinished at once."""
