"""Paths in a run.toml, typed from its own directory, from above it and from elsewhere."""

from pathlib import Path

import pytest

from gavel.cli.options import run_config
from gavel.cli.run_file import paths_beside, paths_seen_from, read_tables, to_toml
from gavel.trainer.config import VllmSettings
from gavel.trainer.run_config import RunConfig

FILE = """
scenario = "desk.py:returns"
[model]
base_model = "models/tiny"
[judge]
rubric = "@texts/rubric.txt"
cassette = "../replies.sqlite"
[backend]
engine = {python = "venv/bin/python"}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "configs"
    (folder / "models" / "tiny").mkdir(parents=True)
    (folder / "run.toml").write_text(FILE)
    return folder / "run.toml"


def paths(config: RunConfig) -> list[str | None]:
    engine = config.backend.engine
    assert isinstance(engine, VllmSettings)
    judge = config.judge
    return [config.scenario, config.model.base_model, judge.rubric, str(judge.cassette), engine.python]


@pytest.mark.parametrize("place", [".", "configs", "elsewhere"])
def test_relative_paths_are_those_beside_the_file(file: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = file.parents[1]
    (root / place).mkdir(exist_ok=True)
    monkeypatch.chdir(root / place)
    typed = {".": "configs/run.toml", "configs": "run.toml", "elsewhere": "../configs/run.toml"}[place]
    found = [str((root / place / each).resolve()) for each in paths(run_config(typed, {})) if each and each[0] != "@"]
    beside = [file.parent / "desk.py:returns", file.parent / "models/tiny", root / "replies.sqlite"]
    assert found == [str(path) for path in (*beside, file.parent / "venv/bin/python")]
    rubric = run_config(typed, {}).judge.rubric
    assert rubric is not None
    assert (root / place / rubric[1:]).resolve() == file.parent / "texts/rubric.txt"


def test_the_services_file_is_read_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc").mkdir()
    file = tmp_path / "etc" / "gavel.toml"
    file.write_text(
        'database = "judgements.sqlite"\n[rubrics]\nbrief = "@brief.txt"\nplain = "Be brief."\n'
        '[judge]\nmodels = "stand-in"\nrubric = "@rubric.txt"\n'
    )
    monkeypatch.chdir(tmp_path)
    tables = paths_beside(read_tables(Path("etc/gavel.toml"))[0], Path("etc"))
    assert tables["database"] == "etc/judgements.sqlite"
    assert tables["rubrics"] == {"brief": "@etc/brief.txt", "plain": "Be brief."}
    assert tables["judge"]["rubric"] == "@etc/rubric.txt"
    server = {"database": "postgresql://user@host/name"}
    assert paths_beside(server, Path("etc")) == server


def test_paths_in_options_are_those_of_the_working_directory(file: Path) -> None:
    config = run_config(str(file), {"rubric": "@mine.txt", "cassette": "here.sqlite"})
    assert (config.judge.rubric, str(config.judge.cassette)) == ("@mine.txt", "here.sqlite")


@pytest.mark.parametrize(
    "text",
    [
        'scenario = "returns_desk"\n[model]\nbase_model = "Qwen/Qwen3-4B"\n',
        'scenario = "/desks/returns.py"\n[judge]\ncassette = "none"\nrubric = "Be brief."\n',
        'scenario = "returns_desk"\n[backend]\nengine = {python = "python3.12"}\n',
        'scenario = "returns_desk"\n[backend]\nengine = "vllm"\n',
    ],
)
def test_what_is_no_relative_path_stays_as_it_is(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.toml").write_text(text)
    monkeypatch.chdir(tmp_path / "a")
    assert run_config("run.toml", {}) == run_config("../b/run.toml", {})


def test_a_configuration_that_is_written_elsewhere_reads_back_as_the_same(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = file.parents[1]
    monkeypatch.chdir(root)
    config = run_config("configs/run.toml", {})
    copy = root / "runs" / "desk" / "run.toml"
    copy.parent.mkdir(parents=True)
    copy.write_text(to_toml(paths_seen_from(config, copy.parent), config))
    assert paths(run_config("runs/desk/run.toml", {})) == paths(config)


def test_a_checkpoint_is_a_path_where_there_is_such_a_directory(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    found = [
        paths_beside({"model": {"from_checkpoint": named}}, tmp_path)["model"]["from_checkpoint"]
        for named in ("adapter", "adapter@3", "sft/pupil", "sft/pupil@3", "s3://bucket/sft/pupil@3")
    ]
    others = ["sft/pupil", "sft/pupil@3", "s3://bucket/sft/pupil@3"]
    assert found == [str(tmp_path / "adapter"), f"{tmp_path / 'adapter'}@3", *others]
