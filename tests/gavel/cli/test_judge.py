"""`gavel judge rubric`, `golden` and `simulate`."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gavel import prompts
from gavel.base.errors import GavelError
from gavel.cli.app import app as program
from gavel.cli.judge import app
from gavel.judge.errors import JudgeError
from gavel.judge.prompt import call_prompt
from gavel.judge.prompt.canonical_group import TextEvent
from gavel.judge.prompt.fenced_transcript import read_transcripts
from gavel.judge.rubric import Rubric
from tests.endpoint import Answer, Endpoint, Request, fails, says

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


def error(result: Result) -> GavelError:
    assert isinstance(result.exception, GavelError), result
    return result.exception


@pytest.fixture
def model(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    """The endpoint as `openai/judge`, which is what GAVEL_JUDGE_MODEL names."""
    monkeypatch.setenv("OPENAI_API_BASE", endpoint.params["api_base"])
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("GAVEL_JUDGE_MODEL", "openai/judge")
    monkeypatch.setenv("GAVEL_PRICES", '{"openai/judge": [1, 1]}')
    return endpoint


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the templates, for a test to change."""
    copy = tmp_path / "words"
    shutil.copytree(prompts._ROOT, copy, ignore=shutil.ignore_patterns("*.py*", "__pycache__"))
    monkeypatch.setattr(prompts, "_ROOT", copy)
    forget()
    yield copy
    monkeypatch.undo()
    forget()


def forget() -> None:
    prompts._environment.cache_clear()
    prompts.template_id.cache_clear()
    call_prompt._instructions.cache_clear()


def change(templates: Path, words: str) -> None:
    with (templates / "judge" / "system.j2").open("a") as file:
        file.write(f"\n{words}\n")
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
    assert "rubric.md is there already" in error(judge("rubric", "A job.", "--out", "rubric.md")).message
    assert model.requests == []
    assert (tmp_path / "rubric.md").read_text() == "mine"


def test_a_first_run_records_and_a_second_asks_nobody(model: Endpoint, golden: list[str], tmp_path: Path):
    model.script = [prefers_good]
    first = judge(*golden)
    assert first.exit_code == 0, first
    assert "2 of 2 verdicts right" in first.output
    assert "good 0.90 > bad 0.20" in first.output
    assert "2 groups are recorded in tape.sqlite.json" in first.output
    assert len(model.requests) == 4
    second = judge(*golden, "--replay")
    assert second.exit_code == 0, second
    assert "no prompt changed; 0 verdicts turned" in second.output
    assert len(model.requests) == 4


def test_a_cassette_that_cannot_be_used_is_told_with_the_remedy(model: Endpoint, golden: list[str], tmp_path: Path):
    (tmp_path / "tape.sqlite").write_text("my notes")
    found = error(judge(*golden))
    assert "it is not a cassette" in found.message
    assert found.remedy == "Name another file for the cassette."
    assert model.requests == []


def test_a_changed_prompt_is_asked_again_and_the_verdicts_that_it_turned_are_named(
    model: Endpoint, golden: list[str], templates: Path, tmp_path: Path
):
    model.script = [prefers_good]
    judge(*golden)
    recorded = (tmp_path / "tape.sqlite.json").read_text()
    change(templates, "Judge backwards.")

    replayed = judge(*golden, "--replay")
    assert "changed prompt: 4 of 4 questions are not on the cassette" in error(replayed).message
    assert len(model.requests) == 4

    asked = judge(*golden)
    assert error(asked).message == "1 verdict turned from right to wrong since the record."
    assert "changed judge/system.j2; 1 verdict turned." in asked.output
    assert "WRONG by now: two: good above bad (was 0.90 and 0.20, is 0.20 and 0.90)" in asked.output
    assert len(model.requests) == 8
    assert (tmp_path / "tape.sqlite.json").read_text() == recorded

    accepted = judge(*golden, "--replay", "--record")
    assert accepted.exit_code == 0, accepted
    assert len(model.requests) == 8
    assert judge(*golden, "--replay").exit_code == 0

    shutil.copy(Path(prompts.__file__).parent / "judge" / "system.j2", templates / "judge" / "system.j2")
    forget()
    back = judge(*golden, "--replay")
    assert back.exit_code == 0, back
    assert "right by now: two" in back.output


def test_groups_that_are_new_are_recorded_beside_the_others(model: Endpoint, golden: list[str], tmp_path: Path):
    model.script = [prefers_good]
    (tmp_path / "set.json").write_text(json.dumps(GROUPS[:1]))
    judge(*golden)
    before = json.loads((tmp_path / "tape.sqlite.json").read_text())["openai/judge"]
    (tmp_path / "set.json").write_text(json.dumps(GROUPS))
    assert "1 group is recorded" in judge(*golden).output
    after = json.loads((tmp_path / "tape.sqlite.json").read_text())["openai/judge"]
    assert list(after) == ["one", "two"]
    assert after["one"] == before["one"]


def test_a_judge_that_is_down_records_nothing(model: Endpoint, golden: list[str], tmp_path: Path):
    model.script = [fails(401, "bad key")]
    result = judge(*golden)
    assert isinstance(result.exception, JudgeError)
    assert "bad key" in error(result).message
    assert not (tmp_path / "tape.sqlite.json").exists()


def test_a_broken_record_is_named(model: Endpoint, golden: list[str], tmp_path: Path):
    (tmp_path / "tape.sqlite.json").write_text("{")
    assert "tape.sqlite.json cannot be read" in error(judge(*golden)).message


def test_the_shipped_set_and_the_place_among_the_runs_are_the_defaults(tmp_path: Path):
    result = judge("golden", "--judge", "constant")
    assert result.exit_code == 0, result
    assert "judge gavel/constant" in " ".join(result.output.split())
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["golden.sqlite", "golden.sqlite.json"]


def test_the_stand_in_is_not_put_to_the_test(golden: list[str], tmp_path: Path):
    assert "says nothing of it" in error(judge(*golden, "--judge", "stand-in")).message
    assert not (tmp_path / "tape.sqlite").exists()


def simulate(*options: str) -> str:
    result = CliRunner().invoke(program, ["judge", "simulate", "--groups", "6", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_shows_every_way_of_asking():
    shown = simulate("--orders", "1,2,2")
    ways = ["1 call by arrival ", "engine, 1 order ", "engine, 2 orders "]
    assert [way for line in shown.splitlines() for way in ways if line.startswith(way)] == ways
    assert "6 groups of 8" in shown


def test_a_judge_without_faults_agrees_with_the_truth():
    perfect = [part for name in ("slope", "u", "noise", "halo", "step") for part in ("--bias", f"{name}=0")]
    told = json.loads(simulate("--json", "--orders", "2", *perfect))
    assert [row["tau"] for row in told["rows"]] == [1.0, 1.0]
    assert [row["calls_per_group"] for row in told["rows"]] == [1.0, 2.0]


def test_biases_reach_the_judge():
    calm, partial = (
        json.loads(simulate("--json", "--orders", "2", "--bias", "noise=0", *more))["rows"][1]
        for more in ([], ["--bias", "self_preference=2"])
    )
    assert partial["tau"] < calm["tau"] - 0.1


def test_faults_come_to_the_share_that_was_asked_for():
    told = json.loads(simulate("--json", "--orders", "4", "--faults", ".5"))
    assert told["faults"] == 0.5
    assert told["rows"][0]["unscored_members"] > 0
    assert told["rows"][1]["calls_per_group"] > 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--orders", "2,x"], "orders"),
        (["--orders", "0"], "orders"),
        (["--faults", "1.5"], r"faulty calls is from 0 to 1, not 1\.5\.$"),
        (["--bias", "noise=-1"], "noise"),
        (["--bias", "slope=nan"], "slope"),
        (["--bias", "compression=1"], "compression"),
        (["--bias", "charm=1"], "charm"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(options, words):
    with pytest.raises(JudgeError, match=words):
        simulate(*options)
