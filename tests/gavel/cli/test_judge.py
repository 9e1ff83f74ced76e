"""`gavel judge rubric`, `golden` and `report`."""

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from gavel import prompts
from gavel.base.errors import GavelError
from gavel.cli.judge import app, print_report, report
from gavel.judge.errors import JudgeError
from gavel.judge.prompt import call_prompt
from gavel.judge.prompt.canonical_group import TextEvent
from gavel.judge.prompt.fenced_transcript import read_transcripts
from gavel.judge.rubric import Rubric
from gavel.reports.judge_trust import read_report
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import TrajectoryStore
from tests.endpoint import Answer, Endpoint, Request, fails, says
from tests.forked import succeed
from tests.gavel.reports.made import judged, made_run

DRAFT = {"criteria": [{"name": n, "text": f"Is {n}.", "weight": w} for n, w in (("kind", 2), ("quick", 1))]}
GROUPS = [
    {
        "name": name,
        "opening": [{"role": "user", "content": f"Say {name}."}],
        "members": {member: [{"role": "assistant", "content": f"{member} {name}"}] for member in ("good", "bad")},
        "order": [["good"], ["bad"]],
    }
    for name in ("one", "two")
]


def judge(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def error(*arguments: str, kind: type[GavelError] = GavelError) -> str:
    result = judge(*arguments)
    assert isinstance(result.exception, kind), result
    return result.exception.message


@pytest.fixture
def model(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    """The endpoint as `openai/judge`, which is what GAVEL_JUDGE_MODEL names."""
    monkeypatch.setenv("OPENAI_API_BASE", endpoint.params["api_base"])
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("GAVEL_JUDGE_MODEL", "openai/judge")
    monkeypatch.setenv("GAVEL_PRICES", '{"openai/judge": [1, 1]}')
    return endpoint


@contextmanager
def instructed(folder: Path, words: str) -> Iterator[None]:
    """The instructions to judges say this, too."""

    def forget() -> None:
        for cached in (prompts._environment, prompts.template_id, call_prompt._instructions):
            cached.cache_clear()

    shutil.copytree(prompts._ROOT, folder, ignore=shutil.ignore_patterns("*.py*", "__pycache__"))
    with (folder / "judge" / "system.j2").open("a") as file:
        file.write(f"\n{words}\n")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prompts, "_ROOT", folder)
            forget()
            yield
    finally:
        forget()


def prefers_good(request: Request) -> Answer:
    """Likes what says "good", but of the group "two" what says "bad" when the prompt says "backwards"."""
    system, user = (message["content"] for message in request["messages"][:2])
    scores = {}
    for label, attempt in read_transcripts(user).items():
        said = attempt[0].events[-1]
        assert isinstance(said, TextEvent)
        backwards = "backwards" in system and said.text.endswith("two")
        scores[label] = 0.9 if said.text.startswith("good") != backwards else 0.2
    return says(json.dumps(scores))


@pytest.fixture
def golden(tmp_path: Path) -> list[str]:
    (tmp_path / "set.json").write_text(json.dumps(GROUPS))
    return ["golden", "set.json", "--cassette", "tape.sqlite"]


def test_a_draft_is_printed_and_written_and_can_be_scored_with(model: Endpoint, tmp_path: Path):
    model.script = [lambda _: says(json.dumps(DRAFT))]
    result = judge("rubric", "The returns desk.", "--criteria", "--out", "deep/rubric.json")
    assert result.exit_code == 0, result
    written = (tmp_path / "deep" / "rubric.json").read_text()
    assert [criterion.weight for criterion in Rubric.of(written).criteria] == [2.0, 1.0]
    assert written in result.output
    assert "--rubric @deep/rubric.json" in result.output


def test_a_rubric_that_its_owner_has_bettered_is_never_overwritten(model: Endpoint, tmp_path: Path):
    (tmp_path / "rubric.md").write_text("mine")
    assert "rubric.md is there already" in error("rubric", "A job.", "--out", "rubric.md")
    assert model.requests == []
    assert (tmp_path / "rubric.md").read_text() == "mine"


def test_verdicts_are_counted_and_a_second_run_asks_only_what_changed(
    model: Endpoint, golden: list[str], tmp_path: Path
) -> None:
    model.script = [prefers_good]
    first = judge(*golden)
    assert first.exit_code == 0, first
    assert "2 of 2 verdicts right" in first.output
    assert "good 0.90 > bad 0.20" in first.output
    assert len(model.requests) == 1 + 4  # the first asks whether the judge is there
    assert "4 replies from the cassette" in judge(*golden).output
    assert len(model.requests) == 5
    with instructed(tmp_path / "words", "Judge backwards."):
        assert "1 of 2 verdicts right" in judge(*golden).output
    assert len(model.requests) == 5 + 1 + 4


@pytest.mark.parametrize(
    ("file", "options", "told"),
    [
        ("tape.sqlite", [], "it is not a cassette"),
        ("other", ["--judge", "stand-in"], "says nothing of it"),
    ],
)
def test_what_cannot_be_put_to_the_test_is_told(
    model: Endpoint, golden: list[str], tmp_path: Path, file: str, options: list[str], told: str
):
    (tmp_path / file).write_text("{")
    assert told in error(*golden, *options)
    assert model.requests == []


def test_a_judge_that_is_down_is_an_error(model: Endpoint, golden: list[str]):
    model.script = [fails(401, "bad key")]
    assert "bad key" in error(*golden, kind=JudgeError)


def test_the_shipped_set_and_the_place_among_the_runs_are_the_defaults(tmp_path: Path):
    result = judge("golden", "--judge", "constant")
    assert result.exit_code == 0, result
    assert "judge gavel/constant" in " ".join(result.output.split())
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["golden.sqlite"]


async def test_notes_and_unscored_members_end_the_table() -> None:
    groups, printed = await judged("one", groups=2, metric="depth"), io.StringIO()
    groups[0].trajectories.append(Trajectory(judgement=Judgement(reason="\x1b[2Jno vote: the judge was away")))
    print_report(Console(file=printed, width=160), read_report(groups, None, "judged.jsonl"))
    text = " ".join(printed.getvalue().split())
    assert "these members have: depth, success" in text
    assert "no vote: the judge was away" in text
    assert "\x1b" not in text


def test_a_run_is_reported_by_its_name_and_scored_anew(tmp_path: Path) -> None:
    made_run(tmp_path / "runs" / "desk" / "one")
    done = succeed("judge", "report", "desk/one", "--reference", "success", cwd=tmp_path, GAVEL_RUNS="runs")
    assert (tmp_path / "runs" / "desk" / "one" / "judge.report.html").is_file()
    assert "3 groups" in done.stdout
    succeed("score", "desk/one", "--judge", "constant", "--out", "o.jsonl", cwd=tmp_path, GAVEL_RUNS="runs")
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 3


async def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "judged.jsonl.zst")
    store.extend(await judged("one", groups=2))
    (tmp_path / "judged.report.html").mkdir()
    with pytest.raises(GavelError, match="cannot be written"):
        report(store.path)
