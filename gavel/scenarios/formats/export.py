"""Exports trajectories to a file in another program's format, or to an OTLP endpoint.

    told = export_file(stored, "verifiers", Path("traces.jsonl"))
    told.summary       # "wrote 1,600 attempts of 200 groups as verifiers traces to traces.jsonl"
    told.notes         # ["left out or changed: 3 × …"]

A file appears once it is complete, and nothing is overwritten. Groups are written one at a time, so that an export may
exceed memory.
"""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from gavel.base import entry_points
from gavel.base.errors import GavelError
from gavel.base.files import replacing
from gavel.base.text import counted
from gavel.llm.types import Message
from gavel.scenarios.formats import atif, inspect_log, otel
from gavel.scenarios.formats.completions import best_conversations, preference_pairs
from gavel.scenarios.formats.exported import Export, Losses, StoredGroup
from gavel.scenarios.formats.otel import OtlpEndpoint
from gavel.scenarios.group import TrajectoryGroup

MARGIN = 0.1
"""Default of the smallest difference that makes a preference pair."""
_JUDGE = "Judge the file first: gavel score FILE --judge MODEL --out judged.jsonl"
_NOTHING = {"dpo": f"{_JUDGE}, with more --orders for surer scores; or take a smaller --margin.", "sft": f"{_JUDGE}."}


def _load_formats(name: str = "gavel", margin: float = 0.0, above: float | None = None) -> dict[str, Export]:
    """All formats by name, those of integrations last. Raises `ExportError` if two share a name."""
    created = datetime.now(UTC).isoformat()
    lines = (".jsonl",)
    found = {
        "dpo": Export("preference pairs", lines, lambda groups, _, losses: preference_pairs(groups, losses, margin)),
        "sft": Export(
            "conversations for SFT", lines, lambda groups, _, losses: best_conversations(groups, losses, above)
        ),
        "atif": Export("ATIF documents", (".jsonl", ""), atif.documents),
        "otel": Export("OpenTelemetry spans", lines, partial(otel.requests, now_ns=time.time_ns())),
        "inspect": Export("an Inspect log", (".json",), partial(inspect_log.log_chunks, name=name, created=created)),
    }
    for module in entry_points.load_all("gavel.formats"):
        for form, export in getattr(module, "EXPORTS", {}).items():
            if form in found:
                remedy = f"Uninstall the distribution of {module.__name__}."
                raise ExportError(f"two formats are called {form!r}.", remedy)
            found[form] = export
    return found


def export_formats() -> list[str]:
    return list(_load_formats())


class ExportError(GavelError):
    """Trajectories cannot be exported."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Summary of an export."""

    summary: str
    notes: list[str]


def stored_groups(groups: Iterable[TrajectoryGroup]) -> Iterator[StoredGroup]:
    """The groups of a file, in the form that is exported."""
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

    `model`: the policy's name, if known; `name`: of an Inspect log. `margin`: for `dpo`, the min difference of two
    scores that is a preference; `above`: for `sft`, the threshold that a conversation's score must exceed. Raises
    `ExportError`, and `AtifError` for an attempt that ATIF has no valid document for.
    """
    formats = _load_formats(name, margin, above)
    if form not in formats:
        raise ExportError(f"there is no format {form!r} to export to.", f"There are: {', '.join(formats)}.")
    export = formats[form]
    losses, sizes = Losses(), list[int]()

    def passing() -> Iterator[StoredGroup]:
        for stored in groups:
            sizes.append(len(stored.group))
            yield stored

    address = str(out) if str(out).startswith(("http://", "https://")) else None
    if address is not None and form != "otel":
        raise ExportError(f"{address} is an address, and {export.title} are files.", "Give -o the name of a file.")
    if address is not None:
        with OtlpEndpoint(address) as endpoint:
            for request in export.documents(passing(), model, losses):
                assert not isinstance(request, str)
                endpoint.send(request)
    else:
        path = Path(out)
        _check_name(path, export)
        _write(path, export, export.documents(passing(), model, losses))
        if form in ("dpo", "sft") and losses.groups == len(sizes):
            path.unlink()
            raise ExportError(f"nothing to write as {export.title}: {'; '.join(losses.notes())}.", _NOTHING[form])
    attempts = counted(sum(sizes) - losses.attempts, "attempt")
    written = counted(len(sizes) - losses.groups, "group")
    summary = f"wrote {attempts} of {written} as {export.title} to {out}"
    return Exported(summary, [f"left out or changed: {note}" for note in losses.notes()])


def _check_name(path: Path, export: Export) -> None:
    if path.exists() or path.is_symlink():
        raise ExportError(f"{path} exists already.", "Give another -o; nothing is written over.")
    if path.suffix not in export.suffixes:
        ways = " or ".join(f"a file that ends in {each}" if each else "a directory" for each in export.suffixes)
        raise ExportError(f"{export.title} cannot be written to {path}.", f"Give -o {ways}.")


def _write(path: Path, export: Export, documents: Iterable[Message | str]) -> None:
    """Writes a file, or a directory with the format's file, or with one file per document if the format names none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            if path.suffix or export.file:
                file = unfinished if path.suffix else unfinished / export.file
                file.parent.mkdir(exist_ok=True)
                with file.open("w", encoding="utf-8") as stream:
                    stream.writelines(each if isinstance(each, str) else f"{_json(each)}\n" for each in documents)
            else:
                unfinished.mkdir()
                for number, document in enumerate(documents):
                    (unfinished / f"{number:06d}.json").write_text(_json(document), encoding="utf-8")
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror or error}", "Give another -o.") from error


def _json(document: Message | str) -> str:
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
