from pathlib import Path

import pytest

from gavel.cli.options import judge_config, replies_directory, with_cassette
from gavel.cli.score import score_and_print
from gavel.judge.config import JudgeConfig, JurorConfig
from gavel.llm.client import PROBE_MESSAGES
from tests.endpoint import Answer, Endpoint, Request, says, scores
from tests.judge.groups import saying


def answer(request: Request) -> Answer:
    """To a judge's question, or to the first question of a run."""
    return scores(0.75, 0.25)(request) if is_about_a_group(request) else says("yes")


def is_about_a_group(request: Request) -> bool:
    return request["messages"] != PROBE_MESSAGES


@pytest.fixture
def judge(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> JudgeConfig:
    endpoint.script = [answer]
    return JudgeConfig(models="openai/judge", params=endpoint.params, prices={"openai/judge": (1, 1)})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "groups.jsonl"
    path.parent.mkdir()
    path.write_text(saying("a", "b").to_json() + "\n")
    return path


def questions(endpoint: Endpoint) -> int:
    return sum(map(is_about_a_group, endpoint.requests))


def test_a_second_scoring_asks_nobody_and_says_what_was_replayed(judge, file, endpoint, tmp_path, capsys):
    out = tmp_path / "deep" / "judged.jsonl"
    score_and_print(file, judge, out=out)
    asked = questions(endpoint)
    out.unlink()
    score_and_print(file, judge, out=out)
    assert questions(endpoint) == asked == 2
    assert "2 replies replayed from" in capsys.readouterr().err
    assert (tmp_path / "deep" / "cassettes.sqlite").is_file()


def test_a_scoring_that_is_replayed_whole_sends_nothing_not_even_the_first_question(judge, file, endpoint, tmp_path):
    out = tmp_path / "judged.jsonl"
    score_and_print(file, judge, out=out)
    assert [is_about_a_group(request) for request in endpoint.requests] == [False, True, True]
    score_and_print(file, judge, out=out, fresh=True)
    assert len(endpoint.requests) == 3


def test_a_scoring_of_groups_without_two_different_attempts_sends_nothing(judge, endpoint, tmp_path):
    file = tmp_path / "groups.jsonl"
    file.write_text(saying("a", "a").to_json() + "\n")
    score_and_print(file, judge)
    assert endpoint.requests == []


def test_without_an_output_file_the_replies_are_kept_among_the_runs(judge, file, endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("GAVEL_RUNS", str(tmp_path / "kept"))
    score_and_print(file, judge)
    assert (tmp_path / "kept" / "cassettes.sqlite").is_file()
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_none_keeps_no_reply_and_a_name_is_the_file(judge, file, tmp_path):
    score_and_print(file, judge.model_copy(update={"cassette": Path("none")}), out=tmp_path / "one" / "judged.jsonl")
    assert {path.name for path in (tmp_path / "one").iterdir()} == {"judged.jsonl", "judged.report.html"}
    named = tmp_path / "mine.sqlite"
    score_and_print(file, judge.model_copy(update={"cassette": named}), out=tmp_path / "one" / "again.jsonl")
    assert named.is_file()
    assert not (tmp_path / "one" / "cassettes.sqlite").exists()


def test_the_option_of_the_command_line_is_read():
    assert judge_config({"cassette": Path("none")}).build().cassette is None
    assert judge_config({"cassette": Path("here.sqlite")}).build().cassette is not None


@pytest.mark.parametrize(
    ("models", "kept"),
    [
        ("stand-in", False),
        ("constant", False),
        (["stand-in", "constant"], False),
        ("openai/m", True),
        (["stand-in", "openai/m"], True),
        ([JurorConfig(model=["stand-in", "openai/m"])], True),
    ],
)
def test_only_judges_that_cost_something_have_a_cassette_by_default(models, kept, tmp_path):
    assert (with_cassette(JudgeConfig(models=models), tmp_path).cassette is not None) == kept


def test_a_pipe_or_a_device_has_no_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("GAVEL_RUNS", "elsewhere")
    assert replies_directory(tmp_path / "judged.jsonl") == tmp_path
    for out in (None, Path("-"), Path("/dev/null"), Path("/dev/stdout")):
        assert replies_directory(out) == Path("elsewhere")
