"""Groups as their store takes and gives them, apart from the database's rows."""

from dataclasses import dataclass

from gavel.judge.service.errors import ServiceError
from gavel.judge.service.schemas.key_scope import KeyScope
from gavel.judge.service.schemas.member_bodies import OnDeadline


@dataclass(frozen=True, slots=True)
class NewMember:
    """A member that is to be accepted, and the group that it names."""

    key_id: str
    project: str
    group: str
    """Name of the group."""
    member: str
    payload: bytes
    """The trajectory as JSON, compressed."""
    size: int
    """Bytes of the trajectory."""
    content_hash: str
    expected: int
    options: bytes
    """How the group is judged, as JSON."""
    settings_hash: str
    """Of all that is the same in the members of a group."""
    judge: str
    retain: bool
    deadline_seconds: float
    on_deadline: OnDeadline
    max_size: int
    """Bytes that the members of a group may have together."""
    no_more_groups: ServiceError | None = None
    """Why it may not be the first of a group; members of groups that are there are taken all the same."""
    scope: KeyScope | None = None
    """What its key may do, which is looked at as it begins a group."""
    begins_rounds: bool = False
    """Whether a closed group's name begins another group, instead of being refused."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group in the database."""

    id: str
    name: str
    project: str
    key_id: str
    expected: int
    arrived: int
    deadline_at: float
    closed_at: float | None

    @property
    def is_open(self) -> bool:
        return self.closed_at is None
