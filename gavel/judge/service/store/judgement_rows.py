"""Between rows and records: compression, and the columns of a judgement."""

from collections.abc import Sequence
from typing import Any

import zstandard

from gavel.judge.service.schemas.judgement_record import NewJudgement, Record
from gavel.judge.service.schemas.stored_verdict import Verdict
from gavel.judge.service.store.tables import judgements

_LEVEL = 1
_c = judgements.c
SUMMARY = (
    _c.id,
    _c.project,
    _c.key_id,
    _c.status,
    _c.judge,
    _c.members,
    _c.retain,
    _c.created_at,
    _c.finished_at,
    _c.calls,
    _c.prompt_tokens,
    _c.completion_tokens,
    _c.cost_usd,
    _c.traceparent,
)
"""The columns of a record without its verdict, in order."""


def compress(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(data)


def decompress(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data)


def pack(verdict: Verdict) -> bytes:
    return compress(verdict.model_dump_json(exclude_defaults=True).encode())


def unpack(result: bytes | None) -> Verdict | None:
    return None if result is None else Verdict.model_validate_json(decompress(result))


def record_of(row: Sequence[Any], result: bytes | None = None) -> Record:
    """The record of a row that begins with the columns of `SUMMARY`."""
    return Record(*row[: len(SUMMARY)], verdict=unpack(result))


def new_record(new: NewJudgement, status: str) -> Record:
    """The record of a request that has just been accepted."""
    return Record(
        id=new.id,
        project=new.project,
        key_id=new.key_id,
        status="running" if status == "running" else "queued",
        judge=new.judge,
        members=new.members,
        retain=new.retain,
        created_at=new.created_at,
        traceparent=new.traceparent,
    )


def columns_of(new: NewJudgement) -> dict[str, Any]:
    """The values of a new row, without status and lease."""
    return {
        "id": new.id,
        "project": new.project,
        "key_id": new.key_id,
        "idempotency_key": new.idempotency_key,
        "request_hash": new.request_hash,
        "judge": new.judge,
        "members": new.members,
        "retain": new.retain,
        "created_at": new.created_at,
        "traceparent": new.traceparent,
        "calls": 0,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "payload": compress(new.payload),
    }


def outcome_columns(verdict: Verdict, finished_at: float) -> dict[str, Any]:
    """What finishing a judgement sets, except for its payload."""
    whole = verdict.group
    return {
        "status": verdict.status,
        "finished_at": finished_at,
        "calls": whole.calls if whole else 0,
        "prompt_tokens": whole.prompt_tokens if whole else 0,
        "completion_tokens": whole.completion_tokens if whole else 0,
        "cost_usd": whole.cost_usd if whole else None,
        "result": pack(verdict),
        "lease_owner": None,
        "lease_until": None,
    }
