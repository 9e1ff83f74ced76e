"""`--cassette FILE|none`: where the commands keep the judge's replies unless told otherwise.

Replies that cost money are kept by default, in `cassettes.sqlite` of the run's or the output's directory, and replayed
by later commands there. Judges that run in this process cost nothing, and leave no file.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from gavel.base.text import counted
from gavel.judge.config import JudgeConfig, JurorConfig
from gavel.judge.judge import Judge
from gavel.llm.cassette import Cassette
from gavel.llm.providers import PROVIDER, model_id

FILE_NAME = "cassettes.sqlite"


def with_cassette(judge: JudgeConfig, directory: Path) -> JudgeConfig:
    """The same, with the cassette of `directory` where none is named and a model costs money."""
    if judge.cassette is not None or all(model_id(name).startswith(f"{PROVIDER}/") for name in _models(judge)):
        return judge
    return judge.model_copy(update={"cassette": directory / FILE_NAME})


def _models(judge: JudgeConfig) -> Iterator[str]:
    for juror in [judge.models] if isinstance(judge.models, str) else judge.models or []:
        models = juror.model if isinstance(juror, JurorConfig) else juror
        yield from [models] if isinstance(models, str) else models


def recorded(judge: JudgeConfig) -> Cassette | None:
    """The cassette of the judge, to look replies up; None where there is none yet."""
    path = judge.cassette
    return Cassette(path, "replay") if path is not None and str(path) != "none" and Path(path).is_file() else None


def replies_directory(out: Path | None) -> Path:
    """Where the replies behind an output are kept: beside a file; else, as for standard output, among the runs."""
    is_stream = out is None or str(out) == "-" or out.is_relative_to("/dev") or (out.exists() and not out.is_file())
    if out is None or is_stream:
        return Path(os.environ.get("GAVEL_RUNS") or "runs")
    return out.parent


def replay_account(judge: Judge | None) -> str:
    """`12 replies replayed from runs/demo/x/cassettes.sqlite`, or an empty text where none was."""
    cassette = judge.cassette if judge else None
    if cassette is None or not cassette.replayed:
        return ""
    return f"{counted(cassette.replayed, 'reply')} replayed from {cassette.path or 'the cassette'}"
