"""The files of an adapter to Together in parts of 20 MiB; an upload that was cut off goes on with the missing parts.

The hash of a file is the MD5 of its one part, or the MD5 of its parts' MD5s with their number behind it.
"""

import asyncio
import hashlib
import math
from pathlib import Path
from typing import Any, cast

import httpx

from gavel.trainer.deploy.adapter_facts import AdapterFacts
from gavel.trainer.deploy.errors import DeployError
from gavel.trainer.deploy.record import DeploymentRecord, Ids
from gavel.trainer.deploy.retry import HostRefusal, refused, repeated, status_of

PART = 20 * 2**20
_AT_ONCE = 4
_PART_SECONDS = 600.0
_VALIDATION_SECONDS, _POLL = 900.0, 3.0


async def upload_adapter(client: Any, record: DeploymentRecord, adapter: AdapterFacts, model: str) -> Ids:
    """Uploads to `model` and waits until the revision is valid; gives `revision`. Raises `DeployError`."""
    revision = await _newest_revision(client, model)
    if revision is None:
        if not record.begun_stage("upload"):
            record.begin("upload", parts={})
        revision = await _upload(client, record, adapter.files(), model)
    await _until_valid(client, model, revision)
    return record.finish("upload", revision=revision)


async def _upload(client: Any, record: DeploymentRecord, files: list[Path], model: str) -> str:
    hashes = {file.name: await asyncio.to_thread(file_hash, file) for file in files}
    by_name = {file.name: file for file in files}
    asked = [{"path": name, "hash": hashes[name], "numParts": part_count(by_name[name])} for name in by_name]
    planned = await _post(client, "create", {"objectId": model, "files": asked})
    done: list[dict[str, Any]] = []
    for remote in planned.get("files") or ():
        name = str(remote["path"])
        if name not in by_name:
            raise DeployError(f"together asks for a file that was not offered: {name}", "Give the same command again.")
        if remote.get("skipUpload"):
            done.append({"path": name, "hash": hashes[name], "skipUpload": True})
            continue
        parts = await _put_parts(record, by_name[name], remote)
        details = {"uploadId": remote.get("uploadId", ""), "parts": parts}
        done.append({"path": name, "hash": hashes[name], "uploadDetails": details})
    completed = await _post(client, "complete", {"objectId": model, "files": done})
    revision = completed.get("revisionId") or await _newest_revision(client, model)
    if not revision:
        raise DeployError("together made no revision of the uploaded files", "Give the same command again.")
    return str(revision)


async def _put_parts(record: DeploymentRecord, file: Path, remote: dict[str, Any]) -> list[dict[str, Any]]:
    """Puts what the record does not know to be there, a few at once; the record learns of each."""
    upload = str(remote.get("uploadId", ""))
    known: dict[str, str] = record.stages["upload"]["parts"].setdefault(upload, {})
    if len(remote["parts"]) != part_count(file):
        raise DeployError(f"together wants {len(remote['parts'])} parts of {file.name}", "Give the same command again.")
    turns = asyncio.Semaphore(_AT_ONCE)

    async def put(http: httpx.AsyncClient, part: dict[str, Any]) -> None:
        number = int(part["partNumber"])
        if str(number) in known:
            return
        async with turns:
            content = await asyncio.to_thread(_read_part, file, number)
            try:
                known[str(number)] = await repeated(lambda: _put(http, part, content))
            except HostRefusal as error:
                raise refused(f"together: part {number} of {file.name} cannot be uploaded", error, _EXPIRED) from error
        record.save()

    async with httpx.AsyncClient(timeout=_PART_SECONDS) as http:
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in remote["parts"]:
                    tasks.create_task(put(http, part))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
    return [{"partNumber": number, "hash": known[str(number)]} for number in range(1, part_count(file) + 1)]


async def _put(http: httpx.AsyncClient, part: dict[str, Any], content: bytes) -> str:
    """The hash that the store gives the part."""
    try:
        answer = await http.put(str(part["url"]), content=content, headers=part.get("headers") or {})
    except httpx.TransportError as error:
        raise HostRefusal(0, type(error).__name__) from None  # its text would hold the signed address
    if not answer.is_success:
        raise HostRefusal(answer.status_code, answer.text[:200], answer.headers.get("retry-after", ""))
    found = answer.headers.get("etag", "").strip().strip('"')
    if not found:
        raise HostRefusal(502, "the store gave no ETag")
    return found


async def _until_valid(client: Any, model: str, revision: str) -> None:
    try:
        async with asyncio.timeout(_VALIDATION_SECONDS):
            while True:
                rows = [row for row in await _revisions(client, model) if row.revision_id == revision]
                state = str((rows[0].validation_status if rows else "") or "")
                if state.endswith(("_FAILED", "_ERROR")):
                    said = "; ".join(str(each.message or each.rule) for each in rows[0].validation_errors or ())
                    raise DeployError(
                        f"together refuses the uploaded adapter: {said or state}",
                        "Remove it (gavel undeploy), and deploy an adapter that fits: see docs/deploy.md.",
                    )
                if not state.endswith("_PENDING"):
                    return
                await asyncio.sleep(_POLL)
    except TimeoutError as error:
        raise DeployError("together is still validating the adapter", "Give the same command again.") from error


async def _newest_revision(client: Any, model: str) -> str | None:
    rows = await _revisions(client, model)
    return str(max(rows, key=lambda row: row.created_at).revision_id) if rows else None


async def _revisions(client: Any, model: str) -> list[Any]:
    try:
        return list((await repeated(lambda: client.models.list_revisions(model))).data or ())
    except Exception as error:
        if status_of(error) is None:
            raise
        raise refused("together: the revisions cannot be listed", error) from error


async def _post(client: Any, call: str, body: dict[str, Any]) -> dict[str, Any]:
    """`create` gives the same upload again for the same hashes; `complete` is repeated where none was made."""
    path = f"/v2/projects/{client.project_id}/models/upload/{call}"

    async def made() -> dict[str, Any] | None:
        revision = await _newest_revision(client, str(body["objectId"])) if call == "complete" else None
        return {"revisionId": revision} if revision else None

    async def ask() -> dict[str, Any]:
        return cast("dict[str, Any]", await client.post(path, cast_to=object, body=body))

    try:
        return await repeated(ask, creates=True, find=made)
    except Exception as error:
        if status_of(error) is None:
            raise
        raise refused(f"together: the upload cannot be {call}d", error) from error


def part_count(file: Path) -> int:
    return max(1, math.ceil(file.stat().st_size / PART))


def file_hash(file: Path) -> str:
    """As Together wants it."""
    with file.open("rb") as stream:
        digests = [hashlib.md5(part, usedforsecurity=False).digest() for part in iter(lambda: stream.read(PART), b"")]
    if len(digests) == 1:
        return digests[0].hex()
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


def _read_part(file: Path, number: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek((number - 1) * PART)
        return stream.read(PART)


_EXPIRED = {403: "The signed address has expired; the same command asks for another and goes on."}
