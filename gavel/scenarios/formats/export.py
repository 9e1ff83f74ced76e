"""Trajectories -> a file of another program's format, or OTLP's endpoint.

    told = export_file(stored, "verifiers", Path("traces.jsonl"))
    told.summary       # "wrote 1,600 attempts of 200 groups as verifiers traces to traces.jsonl"
    told.notes         # ["left out or changed: 3 × …"]

A file appears when it is whole, and nothing is written over. Groups are written one at a time, so that what is exported
may be larger than memory.
"""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gavel.base import entry_points
from gavel.base.errors import GavelError
from gavel.base.files import replacing
from gavel.base.text import counted
from gavel.llm.types import Message
from gavel.scenarios.formats import agenttraj, atif, atropos, inspect_log, otel
from gavel.scenarios.formats import completions as trl
from gavel.scenarios.formats.exported import Export, Losses, StoredGroup
from gavel.scenarios.formats.otel import OtlpEndpoint
from gavel.scenarios.group import TrajectoryGroup

TITLES: dict[str, str] = {
    "dpo": "preference pairs",
    "sft": "conversations for SFT",
    "atif": "ATIF documents",
    "otel": "OpenTelemetry spans",
    "inspect": "an Inspect log",
    "agenttraj": "AgentTraj conversations",
    "atropos": "Atropos groups",
}
_SUFFIXES: dict[str, tuple[str, ...]] = {
    "dpo": (".jsonl",),
    "sft": (".jsonl",),
    "atif": (".jsonl", ""),
    "otel": (".jsonl",),
    "inspect": (".json",),
    "agenttraj": (".jsonl",),
    "atropos": (".jsonl",),
}
"""What the name of an output may end in; an empty suffix is a directory."""
MARGIN = 0.1
"""Default of the smallest difference that makes a preference pair."""
_JUDGE = "Judge the file first: gavel score FILE --judge MODEL --out judged.jsonl"
_NOTHING = {"dpo": f"{_JUDGE}, with more --orders for surer scores; or take a smaller --margin.", "sft": f"{_JUDGE}."}


def _exports() -> dict[str, Export]:
    """Those of integrations."""
    return {name: one for module in entry_points.load_all("gavel.formats") for name, one in module.EXPORTS.items()}


def export_formats() -> list[str]:
    return [*TITLES, *(name for name in _exports() if name not in TITLES)]


def _title(form: str) -> str:
    return TITLES[form] if form in TITLES else _exports()[form].title


class ExportError(GavelError):
    """Trajectories cannot be exported."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    summary: str
    notes: list[str]


@dataclass(slots=True)
class _Counted:
    """Groups that count themselves as they pass."""

    groups: Iterable[StoredGroup]
    seen: int = 0
    attempts: int = 0

    def __iter__(self) -> Iterator[StoredGroup]:
        for stored in self.groups:
            self.seen += 1
            self.attempts += len(stored.group)
            yield stored


def stored_groups(groups: Iterable[TrajectoryGroup]) -> Iterator[StoredGroup]:
    """Groups of a file, as they are exported."""
    for index, group in enumerate(groups):
        yield StoredGroup(group, index)


def export_file(
    groups: Iterable[StoredGroup],
    form: str,
    out: str | Path,
    *,
    model: str | None = None,
    name: str = "gavel",
    margin: float = MARGIN,
    above: float | None = None,
) -> Exported:
    """Writes all attempts. `out`: a file or directory, or for `otel` the http address of a collector.

    `model`: the policy's name, where it is known; `name`: what an Inspect log is called.
    `margin`: of `dpo`, the smallest difference of two scores that is a preference; `above`: of `sft`, what the score of
    a conversation must exceed.
    Raises `ExportError`, and `AtifError` for an attempt that ATIF has no valid document for.
    """
    if form not in export_formats():
        raise ExportError(f"there is no format {form!r} to export to.", f"There are: {', '.join(export_formats())}.")
    losses, passing = Losses(), _Counted(groups)
    address = str(out) if str(out).startswith(("http://", "https://")) else None
    if address is not None and form != "otel":
        raise ExportError(f"{address} is an address, and {_title(form)} are files.", "Give -o the name of a file.")
    if address is not None:
        with OtlpEndpoint(address) as endpoint:
            for request in otel.requests(passing, model, losses, time.time_ns()):
                endpoint.send(request)
    else:
        path = Path(out)
        _check_name(path, form)
        _write(path, passing, form, model, name, losses, margin, above)
        if form in ("dpo", "sft") and losses.groups == passing.seen:
            path.unlink()
            raise ExportError(f"nothing to write as {_title(form)}: {'; '.join(losses.notes())}.", _NOTHING[form])
    attempts = counted(passing.attempts - losses.attempts, "attempt")
    written = counted(passing.seen - losses.groups, "group")
    summary = f"wrote {attempts} of {written} as {_title(form)} to {out}"
    return Exported(summary, [f"left out or changed: {note}" for note in losses.notes()])


def _check_name(path: Path, form: str) -> None:
    if path.exists() or path.is_symlink():
        raise ExportError(f"{path} exists already.", "Give another -o; nothing is written over.")
    suffixes = _SUFFIXES[form] if form in _SUFFIXES else _exports()[form].suffixes
    if path.suffix not in suffixes:
        ways = " or ".join(f"a file that ends in {each}" if each else "a directory" for each in suffixes)
        raise ExportError(f"{_title(form)} cannot be written to {path}.", f"Give -o {ways}.")


def _write(
    path: Path,
    groups: Iterable[StoredGroup],
    form: str,
    model: str | None,
    name: str,
    losses: Losses,
    margin: float,
    above: float | None,
) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            match form:
                case "dpo":
                    _write_documents(unfinished, trl.preference_pairs(groups, losses, margin), separate=False)
                case "sft":
                    _write_documents(unfinished, trl.best_conversations(groups, losses, above), separate=False)
                case "atif":
                    found = atif.documents(groups, model, losses)
                    _write_documents(unfinished, found, separate=not path.suffix)
                case "atropos":
                    _write_documents(unfinished, atropos.groups(groups, losses), separate=False)
                case "otel":
                    found = otel.requests(groups, model, losses, time.time_ns())
                    _write_documents(unfinished, found, separate=False)
                case "agenttraj":
                    _write_documents(unfinished, agenttraj.conversations(groups, losses), separate=False)
                case "inspect":
                    created = datetime.now(UTC).isoformat()
                    chunks = inspect_log.log_chunks(groups, model, losses, name=name, created=created)
                    with unfinished.open("w", encoding="utf-8") as stream:
                        stream.writelines(chunks)
                case _:
                    one = _exports()[form]
                    file = unfinished if path.suffix else unfinished / one.file
                    file.parent.mkdir(exist_ok=True)
                    _write_documents(file, one.documents(groups, model, losses), separate=False)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror or error}", "Give another -o.") from error


def _write_documents(path: Path, documents: Iterable[Message], *, separate: bool) -> None:
    """JSON lines, or a directory with a file for each document."""
    if separate:
        path.mkdir()
        for number, document in enumerate(documents):
            (path / f"{number:06d}.json").write_text(_json(document), encoding="utf-8")
        return
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(f"{_json(document)}\n" for document in documents)


def _json(document: Message) -> str:
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
