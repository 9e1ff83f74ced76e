"""Groups whose members arrive separately, from callers that see one sample each.

    group = await rendezvous.join("step 7, task 3", request, caller)      the member is in the database now
    record = await engine.result(group.record)                            the judgement of the whole group

A waiting caller costs a future; messages are only in the database. A group is closed by the process that its last
member reaches, or by the first one that sees its deadline pass; any process may judge it.
"""

import time
from typing import TYPE_CHECKING

from gavel.judge.service.engine.admission import Caller
from gavel.judge.service.errors import InvalidRequestError, NotFoundError, OverloadedError
from gavel.judge.service.schemas import GroupRecord, MemberRequest, NewMember, ScoreRequest
from gavel.judge.service.store.group_store import GroupStore

if TYPE_CHECKING:
    from gavel.judge.service.engine.engine import Engine


_KEEP_SECONDS = 5.0
"""Seconds between writes of the remaining time of open groups."""


class Rendezvous:
    """The open groups of a service, as one process sees them. For one event loop."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.store = GroupStore(engine.database)
        self._kept_at = float("-inf")
        self._count = 0
        """Open groups of all processes: as of the last poll, plus those started here since."""

    async def join(
        self, name: str, request: MemberRequest, caller: Caller, *, begins_rounds: bool = False
    ) -> GroupRecord:
        """Stores a member of the group `name`, once; returns the group's current state.

        `begins_rounds`: a closed group's name begins another group. Raises a `ServiceError` for a member that does not
        fit.
        """
        engine, limits = self._engine, self._engine.config.limits
        if request.expected > limits.members:
            raise InvalidRequestError(
                f"the group expects {request.expected} members; at most {limits.members} are allowed.",
                "Make smaller groups, or raise the service's setting limits.members.",
            )
        request = request.model_copy(update={"project": caller.project_of(request.project)})
        member, options = request.trajectory_in, request.options
        alone = ScoreRequest(trajectories=[member], **options.model_dump())
        judge, _ = engine.check(alone, request.project, caller)
        is_full = self._count >= limits.open_groups
        new = NewMember(
            request,
            group=name,
            key_id=caller.key_id,
            judge=", ".join(judge.names),
            trajectory=member.model_dump_json(exclude_defaults=True).encode(),
            options=options.model_dump_json(exclude_defaults=True).encode(),
            deadline_seconds=request.deadline_seconds or limits.deadline_seconds,
            max_size=limits.body_bytes,
            no_more_groups=OverloadedError(f"{self._count:,} groups wait for members already.", "Try again later.")
            if is_full
            else None,
            scope=caller.scope,
            begins_rounds=begins_rounds,
        )
        group = await self.store.join(new)
        if not group.is_open:
            engine.worker.wake()
        self._count += group.is_open and group.arrived == 1
        return group

    async def find(self, name: str, member: str, project: str, caller: Caller) -> GroupRecord:
        """The group that a member is in. Raises `NotFoundError`."""
        project = caller.project_of(project)
        group = await self.store.find(caller.key_id, project, name, member) if caller.may_use(project) else None
        if group is None:
            raise NotFoundError(
                f"there is no member {member!r} in a group {name!r}.",
                "POST it to /v1/groups/{group}/members first; groups belong to a project and an API key.",
            )
        return group

    async def open_group(self, group: str, caller: Caller) -> tuple[GroupRecord, list[str]] | None:
        """An open group and the ids of its members so far; None if the caller has none."""
        found = None if "\0" in group else await self.store.open_group(group)
        return None if found is None or not caller.may_use(found[0].record.project) else found

    async def look(self) -> None:
        """Closes groups whose deadline has passed."""
        if await self.store.close_due():
            self._engine.worker.wake()
        if time.monotonic() - self._kept_at > _KEEP_SECONDS:
            await self.store.keep_time()
            self._kept_at = time.monotonic()
        self._count = await self.store.open_groups()
