"""Groups whose members arrive separately, from callers that see one sample each.

    group = await rendezvous.join("step 7, task 3", request, caller)      the member is in the database now
    record = await rendezvous.result(group, wait=900)                     the judgement of the whole group

A waiting caller costs a future; messages are only in the database. A group is closed by the process that its last
member reaches, or by the first one that sees its deadline pass; any process may judge it.
"""

import asyncio
import hashlib
import json
import time
from typing import TYPE_CHECKING

from gavel.judge.service.engine.admission import Caller
from gavel.judge.service.errors import InvalidRequestError, NotFoundError, OverloadedError, ServiceError
from gavel.judge.service.schemas import GroupRecord, MemberRequest, NewMember, Record, ScoreRequest
from gavel.judge.service.store.group_store import GroupStore
from gavel.judge.service.store.tables import compress

if TYPE_CHECKING:
    from gavel.judge.service.engine.engine import Engine


_KEEP_SECONDS = 5.0
"""Seconds between writes of the remaining time of open groups."""


class Rendezvous:
    """The open groups of a service, as one process sees them. For one event loop."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.store = GroupStore(engine.database)
        self._limits = engine.config.limits
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
        if request.expected > self._limits.members:
            raise InvalidRequestError(
                f"the group expects {request.expected} members; at most {self._limits.members} are allowed.",
                "Make smaller groups, or raise the service's setting limits.members.",
            )
        project = caller.project_of(request.project)
        if project != request.project:
            request = request.model_copy(update={"project": project})
        group = await self.store.join(self._make_member(name, request, caller, begins_rounds))
        if not group.is_open:
            self._engine.worker.wake()
        elif group.arrived == 1:
            self._count += 1
            self._engine.admission.begun(caller)
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
        return None if found is None or not caller.may_use(found[0].project) else found

    async def result(self, group: GroupRecord, wait: float) -> Record | None:
        """The judgement of a group, unfinished if `wait` seconds elapsed; None while the group is open.

        Raises `NotFoundError` when the judgement was deleted.
        """
        if group.is_open and not wait:
            return None
        with self._engine.waiters.waiting(group.id) as future:
            if not group.is_open:
                record = await self._engine.store.get(group.id)
                if record is None:
                    raise _deleted(group)
                if record.is_finished or not wait:
                    return record
            try:
                async with asyncio.timeout(wait):
                    record = await future
            except TimeoutError:
                return await self._engine.store.get(group.id)
        if record is None:
            raise _deleted(group)
        return record

    async def look(self) -> None:
        """Closes groups whose deadline has passed."""
        if await self.store.close_due():
            self._engine.worker.wake()
        if time.monotonic() - self._kept_at > _KEEP_SECONDS:
            await self.store.keep_time()
            self._kept_at = time.monotonic()
        self._count = await self.store.open_groups()

    def _make_member(self, name: str, request: MemberRequest, caller: Caller, begins_rounds: bool) -> NewMember:
        member, options = request.trajectory_in, request.options
        alone = ScoreRequest(trajectories=[member], **options.model_dump())
        judge, _ = self._engine.check(alone, request.project, caller)
        trajectory = member.model_dump_json(exclude_defaults=True).encode()
        options_json = options.model_dump_json(exclude_defaults=True)
        same = [request.expected, request.deadline_seconds, request.on_deadline, options_json]
        return NewMember(
            key_id=caller.key_id,
            project=request.project,
            group=name,
            member=request.id,
            payload=compress(trajectory),
            size=len(trajectory),
            content_hash=hashlib.sha256(trajectory).hexdigest(),
            expected=request.expected,
            options=options_json.encode(),
            settings_hash=hashlib.sha256(json.dumps(same).encode()).hexdigest(),
            judge=", ".join(judge.names),
            retain=request.retain,
            deadline_seconds=request.deadline_seconds or self._limits.deadline_seconds,
            on_deadline=request.on_deadline,
            max_size=self._limits.body_bytes,
            no_more_groups=self._no_more_groups(caller),
            scope=self._engine.admission.scope(caller),
            begins_rounds=begins_rounds,
        )

    def _no_more_groups(self, caller: Caller) -> ServiceError | None:
        if self._count >= self._limits.open_groups:
            return OverloadedError(f"{self._count:,} groups wait for members already.", "Try again later.")
        return self._engine.admission.refusal(caller)


def _deleted(group: GroupRecord) -> NotFoundError:
    return NotFoundError(f"the judgement of the group {group.name!r} was deleted.", "Send the group under a new name.")
