"""`gavel score`: what is read, judged, kept and printed; in batches; from a cassette."""

import html
import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gavel.base.errors import GavelError
from gavel.cli.options import replies_directory, with_cassette
from gavel.cli.score import Scoring, print_scores
from gavel.judge.config import JudgeConfig
from gavel.judge.errors import JudgeError
from gavel.judge.judge import Judge
from gavel.llm import batch as batch_module
from gavel.scenarios.formats.reading import read_groups
from gavel.scenarios.formats.row import RowError
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.judged_file import JudgedFileError
from gavel.scenarios.judgement import Judgement
from gavel.scenarios.trajectory import Trajectory
from tests.batches import BatchService
from tests.endpoint import Answer, Endpoint, Request, labels_in, says, scores
from tests.forked import start_gavel, succeed
from tests.judge.groups import broken, saying
from tests.limits import wait_until
from tests.vendors import PERMANENT

RULES = "- ends with a message to the customer"
ASK = {"role": "user", "content": "Where is my parcel?"}
GOOD = [ASK, {"role": "assistant", "content": "At the depot."}]
SILENT = [ASK, {"role": "assistant", "content": ""}]


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def parcels(groups: int) -> list[dict[str, Any]]:
    """Rows of two attempts a group, whose number is `n`."""
    asks = [{"role": "user", "content": f"Where is parcel {n}?"} for n in range(groups)]
    return [{"n": n, "messages": [ask, messages[1]]} for n, ask in enumerate(asks) for messages in (GOOD, SILENT)]


async def score_file(path: Path, judge: Judge, *, out: Path | None = None, **more: Any) -> list[TrajectoryGroup]:
    scoring = Scoring([path], out=out, **more)
    return await scoring.score(judge, scoring.output(judge))


def score_and_print(
    path: Path, judge: JudgeConfig, by: str | None = None, out: Path | None = None, *, batch: bool = False, **more: Any
) -> None:
    Scoring([path], by, out, **more).run(judge, batch=batch)


def printed(groups: list[TrajectoryGroup], by: str | None = None) -> str:
    text = io.StringIO()
    print_scores(Console(file=text, width=160), groups, by)
    return text.getvalue()


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("[" * 100_000 + "\n", "is no JSON value"),
        ({"messages": [{"content": "no role"}]}, "cannot be judged: 0.role: field required"),
        ({"trajectories": 5}, "cannot be judged"),
        ([], "has a trajectory without messages"),
    ],
)
async def test_a_broken_row_is_named_and_nothing_is_judged(tmp_path: Path, row: Any, problem: str):
    path, out = written(tmp_path / "rows.jsonl", GOOD, row), tmp_path / "out.jsonl"
    with pytest.raises(RowError, match=r"rows\.jsonl:2 .*" + problem):
        await score_file(path, Judge(broken), out=out)
    assert not out.exists()


async def test_a_file_of_groups_may_be_scored_onto_itself_and_no_other(tmp_path: Path):
    rows, path = written(tmp_path / "rows.jsonl", GOOD, SILENT), tmp_path / "judged.jsonl"
    before = rows.read_bytes()
    with pytest.raises(GavelError, match="cannot be written"):
        await score_file(rows, Judge(broken), out=tmp_path)
    with pytest.raises(JudgedFileError, match="is the input"):
        await score_file(rows, Judge("stand-in", rubric=RULES), out=rows)
    assert rows.read_bytes() == before
    await score_file(rows, Judge("stand-in", rubric=RULES), out=path)
    judged = await score_file(path, Judge("stand-in", rubric=RULES, orders=4), out=path, fresh=True)
    assert read_groups(path) == judged


async def test_the_table_shows_scores_errors_and_reasons(tmp_path: Path):
    rows = [{"task": "a", "messages": messages} for messages in (GOOD, SILENT)]
    path = written(tmp_path / "rows.jsonl", *rows, {"task": "b", "messages": GOOD})
    text = printed(await score_file(path, Judge("stand-in", rubric=RULES, orders=2), by="task"), "task")
    assert "1.00 ± 0.00" in text
    first, reason, remedy, *_ = text.splitlines()
    assert first.startswith("Scored 2 of 3 trajectories in 2 groups.")
    assert reason == "1 unscored: there is no other trajectory to compare it with"
    assert text.count("no other trajectory") == 1
    assert "--by FIELD" in remedy
    assert "2 groups · 2 of 3 trajectories scored · judge gavel/stand-in · 2 calls" in text


def test_what_a_judge_says_cannot_draw_on_the_terminal():
    said = Judgement(score=0.5, explanation="[red]x[/] \x1b[2J\u202eevil", flags=["addresses the judge"])
    text = printed([TrajectoryGroup([Trajectory(messages_and_choices=[ASK], judgement=said)])])
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[addresses the judge] [red]x[/]" in text


@pytest.mark.parametrize(
    ("rubric", "told"),
    [
        ("@none.md", r"the rubric none\.md cannot be read"),
        ("none.md", "names a file"),
        ("@slip.json", "no JSON of a rubric"),
        (None, r"the stand-in cannot read(.|\n)*--rubric"),
        ("- answers correctly", "the stand-in cannot read"),
    ],
)
def test_a_rubric_that_is_not_there_has_a_slip_or_no_rule_to_check_is_an_error(
    tmp_path: Path, rubric: str | None, told: str
):
    written(tmp_path / "slip.json", '{"criteria": [{"name": "kind" "text": "Is kind."}]}')
    rows, config = written(tmp_path / "rows.jsonl", GOOD, SILENT), JudgeConfig(models="stand-in", rubric=rubric)
    with pytest.raises(JudgeError if "stand-in" in told else GavelError, match=told):
        score_and_print(rows, config, None, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def command(endpoint: Endpoint, *more: str) -> list[str]:
    params = [f"--judge-param={name}={value}" for name, value in endpoint.params.items()]
    return ["score", "rows.jsonl", "--by", "n", "--orders", "1", "--judge", "openai/judge", *params, *more]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_goes_on_without_paying_twice(tmp_path: Path, endpoint: Endpoint, stop: signal.Signals):
    written(tmp_path / "rows.jsonl", *parcels(4))
    out = tmp_path / "judged.jsonl"
    probed = says('{"ok": true}')
    endpoint.script = [lambda _: probed, scores(0.9, 0.1), scores(0.9, 0.1), endpoint.silence]
    running = start_gavel(*command(endpoint, "--out", "judged.jsonl", "--cassette", "none"), cwd=tmp_path)
    wait_until(lambda: not running.process.is_alive() or (out.exists() and out.read_bytes().count(b"\n") >= 2))
    running.send(stop)
    stopped = running.end()
    if stop == signal.SIGINT:
        assert stopped.returncode == 130
        assert "Stopped. Kept: 2 groups; the same command goes on from there" in stopped.stderr
        assert "Traceback" not in stopped.stderr
    asked = len(endpoint.requests)
    endpoint.script = [lambda _: probed, scores(0.9, 0.1)]
    again = succeed(*command(endpoint, "--out", "judged.jsonl", "--cassette", "none"), cwd=tmp_path)
    assert "Judged already: 2 of 4 groups" in again.stderr
    assert len(endpoint.requests) - asked == 1 + 2
    assert [group.metadata for group in read_groups(out)] == [{"n": n} for n in range(4)]


@pytest.mark.slow
def test_standard_output_is_json_lines_and_nothing_else(tmp_path: Path, endpoint: Endpoint):
    written(tmp_path / "rows.jsonl", *[{"n": 1, "messages": messages} for messages in (GOOD, SILENT)])
    endpoint.script = [lambda _: says('{"ok": true}'), scores(0.9, 0.1)]
    done = succeed(*command(endpoint, "--out", "-"), cwd=tmp_path)
    (line,) = done.stdout.splitlines()
    assert TrajectoryGroup.model_validate(json.loads(line)).metadata == {"n": 1}
    assert "on standard output" in done.stderr
    assert "2 of 2 trajectories scored" in " ".join(done.stderr.split())


def test_the_stand_in_is_announced_with_the_judge_that_a_key_makes_usable_and_what_it_does_not_read_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "set")
    config = JudgeConfig(models="stand-in", rubric=f"{RULES}\n- is right")
    score_and_print(written(tmp_path / "rows.jsonl", *parcels(2)), config, "n", tmp_path / "out.jsonl")
    out, told = capsys.readouterr()
    assert "ANTHROPIC_API_KEY is set: --judge anthropic/" in told
    assert out.count("is right") == 1
    assert "1 of 2 rules checked; not read:" in html.unescape((tmp_path / "out.report.html").read_text())


@pytest.mark.parametrize("stop", ["budget", "quota"])
def test_a_judge_that_stops_keeps_what_was_judged_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], endpoint: Endpoint, stop: str
):
    path, out = written(tmp_path / "rows.jsonl", *parcels(6)), tmp_path / "judged.jsonl"
    quota = PERMANENT["openai: quota"]
    endpoint.script = [lambda _: says('{"ok": true}'), scores(0.9, 0.1), scores(0.9, 0.1), lambda _: quota]
    most = None
    if stop == "budget":
        usage = {"prompt_tokens": 3000, "completion_tokens": 20, "total_tokens": 3020}
        endpoint.script, most = [lambda r: Answer(scores(0.9, 0.1)(r).body | {"usage": usage})], 10_000
    config = JudgeConfig(
        models="openai/judge", orders=1, concurrency=1, params=endpoint.params, max_tokens=most, rubric=RULES
    )
    with pytest.raises(JudgeError, match=r"not judged: \d of 6 groups: ") as error:
        score_and_print(path, config, "n", out)
    assert ("budget is used up" if stop == "budget" else "exceeded your current quota") in error.value.message
    assert "What was judged is kept; the same command goes on from there" in error.value.remedy
    kept = [group for group in read_groups(out) if all(trajectory.reward is not None for trajectory in group)]
    assert 0 < len(kept) < 6
    asked = len(endpoint.requests)
    endpoint.script = [scores(0.9, 0.1)]
    score_and_print(path, config.model_copy(update={"max_tokens": None}), "n", out)
    assert len(endpoint.requests) - asked == 1 + 6 - len(kept)


def paid(endpoint: Endpoint, **more: Any) -> JudgeConfig:
    prices = {"openai/judge": (1000.0, 1000.0)}  # 0.12 USD a call
    probed = says('{"ok": true}', {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20})  # 0.02 USD
    endpoint.script = [lambda _: probed, scores(0.9, 0.1)]
    return JudgeConfig(models="openai/judge", orders=1, params=endpoint.params, rubric=RULES, prices=prices, **more)


def test_what_is_judged_or_on_the_cassette_costs_nothing_and_the_last_line_tells_what_this_run_has_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], endpoint: Endpoint
):
    path, out = written(tmp_path / "rows.jsonl", *parcels(4)), tmp_path / "deep" / "judged.jsonl"
    config = paid(endpoint)

    def estimate(**more: Any) -> str:
        Scoring([path], "n", out, **more).print_estimate(with_cassette(config, out.parent))
        return capsys.readouterr().out

    assert "4 groups: 4 calls, about" in estimate()
    assert not out.parent.exists()
    score_and_print(path, config, "n", out)
    cost = "4 calls · 400 + 80 tokens · 0.48 USD"
    assert f"{cost} · this run: 5 calls, 0.50 USD" in " ".join(capsys.readouterr().out.split())
    assert (out.parent / "cassettes.sqlite").is_file()
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:3]))
    assert "4 groups, 3 judged already: 1 reply on the cassette, no call." in estimate()
    assert "4 groups: 4 replies on the cassette, no call. Nothing was asked." in estimate(fresh=True)
    with pytest.raises(GavelError, match="was judged with orders"):
        Scoring([path], "n", out).print_estimate(config.model_copy(update={"orders": 2}))
    assert out.read_text() == "".join(lines[:3])
    score_and_print(path, config, "n", out)
    assert len(endpoint.requests) == 5
    assert "1 reply replayed from" in capsys.readouterr().err
    out.write_text("".join(lines[:3]))
    paid(endpoint)
    score_and_print(path, config.model_copy(update={"cassette": Path("none")}), "n", out)
    assert f"{cost} · this run: 2 calls, 0.14 USD" in " ".join(capsys.readouterr().out.split())
    alike = written(tmp_path / "alike.jsonl", GOOD, GOOD)
    score_and_print(alike, config, None, tmp_path / "alike.out.jsonl")
    assert len(endpoint.requests) == 7  # no two different attempts


@pytest.mark.parametrize("onto", ["judged.jsonl", None])
def test_what_nobody_was_scored_in_is_judged_again_and_the_rest_is_not_paid_for(
    onto: str | None, tmp_path: Path, endpoint: Endpoint
):
    rows = [{"task": n, "messages": [{"role": "assistant", "content": f"{n}{a}"}]} for n in range(3) for a in "ab"]
    file, out = written(tmp_path / "rows.jsonl", *rows), tmp_path / "judged.jsonl"

    def declines_one_group(request: Any) -> Any:
        if "1a" not in str(request["messages"]):
            return scores(0.9, 0.1)(request)
        entries = [{"trajectory_id": label, "explanation": "?", "score": None} for label in labels_in(request)]
        return says(json.dumps({"scores": entries}))

    def ready(_: Any) -> Any:
        return says('{"ready": true}')

    endpoint.script = [ready, declines_one_group]
    config = JudgeConfig(models="openai/judge", orders=1, params=endpoint.params, cassette=Path("none"))
    with pytest.raises(JudgeError, match="scored nobody in 1 of 3 groups"):
        score_and_print(file, config, "task", out)
    assert [g.judgement and g.judgement.status for g in read_groups(out)] == ["scored", "unscored", "scored"]
    before, earlier = read_groups(out), len(endpoint.requests)
    endpoint.script = [ready, scores(0.9, 0.1)]
    again = tmp_path / onto if onto else None
    score_and_print(out, config, None, again, retry_unscored=True)
    assert len(endpoint.requests) == earlier + 2
    if again is not None:
        first, second, third = read_groups(again)
        assert second.judgement
        assert ([first, third], second.judgement.status) == (before[::2], "scored")
    other = config.model_copy(update={"rubric": "Be kind."})
    with pytest.raises(GavelError, match="rubric"):
        score_and_print(out, other, None, tmp_path / "other.jsonl", retry_unscored=True)


GROUPS = 6


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchService]:
    monkeypatch.setattr(batch_module, "POLL_SECONDS", (0.01, 0.02))
    service = BatchService()
    yield service
    service.close()


@pytest.fixture
def config(service: BatchService) -> JudgeConfig:
    return JudgeConfig(models="openai/judge", params=service.params, prices={"openai/judge": (2, 8)})


@pytest.fixture
def groups_file(tmp_path: Path) -> Path:
    return written(tmp_path / "groups.jsonl", *(saying(f"a {n}", f"b {n}").to_json() + "\n" for n in range(GROUPS)))


def one_is_unusable_at_first(request: Request) -> Answer:
    """Answers one order of one group with prose, until it is told why that cannot be used."""
    shown = request["messages"][1]["content"]
    if len(request["messages"]) == 2 and "a 2" in shown and shown.index("a 2") < shown.index("b 2"):
        return says("The first is better.", {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120})
    return scores(0.75, 0.25)(request)


@pytest.mark.slow
def test_scores_come_through_batches_at_half_the_price_and_repairs_through_a_second_one(
    service, config, groups_file, tmp_path, capsys
):
    service.answer = one_is_unusable_at_first
    out = tmp_path / "judged.jsonl"
    score_and_print(groups_file, config, out=out, batch=True)
    judged = read_groups(out)
    said = [group.judgement for group in judged if group.judgement]
    assert {each.status for each in said} == {"scored"}
    assert [len(batch.requests) for batch in service.batches.values()] == [2 * GROUPS, 1]
    assert sum(each.cost_usd or 0 for each in said) == pytest.approx((2 * GROUPS + 1) * (100 * 2 + 20 * 8) / 1e6 / 2)
    assert sum(each.calls for each in said) == 2 * GROUPS + 1
    assert "12 of 12 answered" in capsys.readouterr().err
    assert not (tmp_path / "judged.jsonl.batch").exists()

    out.unlink()
    score_and_print(groups_file, config, out=out, batch=True)
    assert len(service.batches) == 2
    assert [[t.reward for t in group] for group in read_groups(out)] == [[t.reward for t in group] for group in judged]


@pytest.mark.parametrize(
    ("changed", "out", "told"),
    [
        ({}, "-", "need a file"),
        ({"models": "ollama/qwen3"}, "out.jsonl", "cannot be asked in batches"),
        ({"mode": "readout"}, "out.jsonl", "the mode readout reads probabilities"),
    ],
)
def test_what_no_batch_can_do_is_refused_before_one_is_sent(service, config, groups_file, tmp_path, changed, out, told):
    with pytest.raises(GavelError, match=told):
        score_and_print(groups_file, config.model_copy(update=changed), out=Path(out), batch=True)
    assert not service.batches
    assert not list(tmp_path.glob("out*"))


def test_replies_are_kept_beside_a_file_and_among_the_runs_where_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("GAVEL_RUNS", "elsewhere")
    for out in (None, Path("-"), Path("/dev/stdout")):
        assert replies_directory(out) == Path("elsewhere")
    assert with_cassette(JudgeConfig(models=["stand-in", "openai/m"]), tmp_path).cassette
    assert not with_cassette(JudgeConfig(models=["stand-in", "constant"]), tmp_path).cassette  # they cost nothing
