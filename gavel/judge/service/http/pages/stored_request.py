"""What the pages show of a stored request: the members' names, and how they are to be judged. No transcript."""

from pydantic import BaseModel, ConfigDict, ValidationError

from gavel.judge.service.schemas.bodies import JudgingOptions
from gavel.judge.service.store.tables import decompress


class _Named(BaseModel):
    id: str | None = None


class StoredRequest(JudgingOptions):
    """A request without its trajectories."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    trajectories: list[_Named]

    @classmethod
    def read(cls, payload: bytes) -> "StoredRequest | None":
        """The request in a judgement's payload; None for one that this version cannot read."""
        try:
            return cls.model_validate_json(decompress(payload))
        except ValidationError:
            return None

    @property
    def ids(self) -> list[str]:
        """The members' names, in order."""
        return [str(index) if member.id is None else member.id for index, member in enumerate(self.trajectories)]

    @property
    def listed_criteria(self) -> list[tuple[str, str, float]]:
        """Name, text and weight of each criterion."""
        return [
            (f"criterion {place}", one, 1.0) if isinstance(one, str) else (one.name, one.text, one.weight)
            for place, one in enumerate(self.criteria or (), start=1)
        ]
