"""The viewer's pages over run directories: what they show, that hostile text stays text, and what they refuse."""

import re
import secrets
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from typer.testing import CliRunner

from gavel.cli.judge import app as judge
from gavel.llm.cassette import Question, SqliteStorage
from gavel.llm.types import Reply
from gavel.reports.viewer.app import COOKIE, Guard, create_app
from gavel.reports.viewer.index import Index
from gavel.scenarios.group import to_line
from gavel.scenarios.judgement import Vote
from gavel.scenarios.trajectory import History, RolloutError
from gavel.trainer.runs.run_listing import read_runs
from tests.gavel.reports.made import HOSTILE, RUN, Page, damage_row, group, member, run_directory, sampled, store

GROUP = f"/group/{RUN}/trajectories/train/000001.jsonl.zst/0"


@pytest.fixture
def root(tmp_path):
    run_directory(tmp_path / "runs")
    return tmp_path / "runs"


def served(root, tmp_path):
    """A client of the viewer of the runs that are there now."""
    index = Index(root, tmp_path / f"{secrets.token_hex(4)}.sqlite")
    index.update()
    return TestClient(create_app(index, lambda: read_runs(root)), base_url="http://127.0.0.1")


@pytest.fixture
def client(root, tmp_path):
    with served(root, tmp_path) as client:
        yield client


def shown(client, address, status=200):
    answer = client.get(address)
    assert answer.status_code == status, answer.text
    return Page(answer.text).text


def test_every_link_of_every_page_leads_to_a_page(client):
    seen, waiting = set(), {"/"}
    while waiting:
        seen.add(address := waiting.pop())
        answer = client.get(address)
        assert answer.status_code == 200, (address, answer.text)
        if not address.startswith("/assets/"):
            html = answer.text.replace("&amp;", "&").replace("&#39;", "'")
            waiting |= set(re.findall(r'(?:href|src)="(/[^"#]*)"', html)) - seen
    assert len([address for address in seen if not address.startswith("/assets/")]) > 20


def test_damaged_files_are_told_on_the_list_and_on_the_page_of_their_run(root, tmp_path):
    other = "compare/desk/other"  # a run of a comparison
    run_directory(root, run=other)
    damage_row(root / RUN)
    store(root, 2).path.write_bytes(b"no zstd at all")
    with served(root, tmp_path) as client:
        for address, times in (("/", 1), (f"/run/{RUN}", 1), (f"/run/{other}", 0)):
            text = shown(client, address)
            for told in ("metrics.jsonl cannot be read (line 2)", "000002.jsonl.zst is no trajectory store"):
                assert text.count(told) == times
            assert "success 0.50 at step 2" in text


def test_a_group_shows_members_scores_votes_and_what_the_judge_said(client):
    text = shown(client, GROUP)
    for part in ("I am done.", "Mended it.", "0.90", "± 0.05", "because", "no success", "look", "a lamp", "at step 2"):
        assert part in text
    assert text.count("You run the desk.") == 1
    by_score = client.get(f"{GROUP[:-1]}1?sort=score").text
    assert by_score.index('id="member-1"') < by_score.index('id="member-0"')
    assert 'id="member-0"' not in client.get(f"{GROUP}?member=1").text


def test_a_group_is_titled_by_its_task_and_shows_tools_the_legend_and_what_the_judge_could_not_read(root, tmp_path):
    look = {"name": "look", "description": HOSTILE, "parameters": {"type": "object"}}
    plain = member("x", 0.5, task="0f3a9c11b2de", tools=[{"type": "function", "function": look}])
    plain.messages_and_choices[1] = {"role": "user", "content": "Where is my lamp? " * 40}
    made: Any = group(plain, plain.model_copy(deep=True))
    made.judgement.warnings = ["1 of 3 rules checked; not read: is polite"]
    store(root, 8).append(made)
    with served(root, tmp_path) as client:
        html = client.get(f"/group/{RUN}/trajectories/train/000008.jsonl.zst/0").text
        (heading,) = re.findall(r"<h1>(.*?)</h1>", html, re.DOTALL)
        assert heading.startswith("Where is my lamp?")
        assert "0f3a9c11b2de" not in heading
        assert len(heading) < 200
        text = Page(html).text
        for part in ("1 tool:", HOSTILE, '"type": "object"', "not read: is polite", "0.01 to 0.1"):
            assert part in text
        listed = shown(client, "/groups")
        assert "Where is my lamp?" in listed
        assert "not read: is polite" in listed


def test_a_vote_shows_what_the_judge_saw(root, tmp_path):
    question = Question("openai/x", {}, {}, [{"role": "user", "content": f"Judge: {HOSTILE}"}])
    storage = SqliteStorage(root / RUN / "cassettes.sqlite")
    storage.keep([(question, Reply(f"said {HOSTILE}", 1, 1, None, "stop", "x"))]).result()
    storage.close()
    judged: Any = member("x", 0.5, task="voted")
    judged.judgement.votes = [
        Vote(score=0.5, position=0, order=0, model="openai/x", reply_key=key) for key in (question.key, "lost", "")
    ]
    store(root, 7).append(group(judged))
    with served(root, tmp_path) as client:
        address = f"/vote/{RUN}/trajectories/train/000007.jsonl.zst/0?member=0&vote="
        text = shown(client, f"{address}0")
        assert f"Judge: {HOSTILE}" in text
        assert f"said {HOSTILE}" in text
        assert "does not hold the reply" in shown(client, f"{address}1")
        assert "was not kept" in shown(client, f"{address}2")
        shown(client, f"{address}3", 404)
        shown(client, f"{address}x", 422)


@pytest.mark.parametrize("name", [RUN, f"{RUN}/metrics.jsonl", f"{RUN}/model.json", "annotations.jsonl"])
def test_a_link_out_of_the_directory_shows_nothing_of_what_it_leads_to(name, root, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    if name == "annotations.jsonl":
        elsewhere.write_text(to_line(group(member("secret", 0.5))))
    else:
        (root / name).rename(elsewhere)
    (root / name).symlink_to(elsewhere)
    with served(root, tmp_path) as client:
        told = client.get("/").text
        assert "is a link to" in told
        assert "success 0.50 at step 2" not in told
        assert ("0.75" in client.get(f"/run/{RUN}").text) == (name == "annotations.jsonl")
        assert "secret" not in client.get("/annotations/golden.json").text


def test_text_of_agents_tools_judges_and_files_stays_text(tmp_path):
    root = tmp_path / "hostile"
    more = {"logs": [HOSTILE], "agent": HOSTILE, "status": "truncated", "status_reason": HOSTILE}
    bad: Any = member(HOSTILE, 0.5, task=HOSTILE, flags=(HOSTILE,), **more)
    bad.judgement.explanation = bad.judgement.reason = HOSTILE
    bad.judgement.criteria = {HOSTILE: 0.5}
    bad.judgement.votes[0].explanation = HOSTILE
    bad.metrics = {HOSTILE: 1.0, "success": 0.5}
    thought = {"role": "assistant", "content": HOSTILE * 60, "reasoning_content": HOSTILE}
    bad.messages_and_choices[2:3] = [sampled(None, (HOSTILE, HOSTILE), message=thought)]
    bad.messages_and_choices.append({"role": HOSTILE, "content": f"{HOSTILE} \ud800 half"})
    bad.additional_histories = [History(messages_and_choices=[sampled(HOSTILE)], agent=HOSTILE)]
    other = bad.model_copy(deep=True)
    made: Any = group(bad, other, exceptions=[RolloutError(type=HOSTILE, message=HOSTILE)])
    made.judgement.reason, made.judgement.warnings, made.judgement.models = HOSTILE, [HOSTILE], [HOSTILE]
    made.judgement.repairs = {HOSTILE: 1}
    store(root, 1, run="desk/<b>run").append(made)
    (root / "desk/<b>run" / "model.json").write_text('{"format_version": 1}')
    with served(root, tmp_path) as client:
        group_address = "/group/desk/%3Cb%3Erun/trajectories/train/000001.jsonl.zst/0"
        searches = [f"/groups?q={words}" for words in ("alert", HOSTILE[:100].replace("&", ""))]
        for address in ("/", "/groups", "/run/desk/%3Cb%3Erun", group_address, *searches):
            answer = client.get(address)
            assert answer.status_code == 200, address
            page = Page(answer.text)
            assert page.open == []
            assert "<script>alert" not in answer.text
            assert not [name for name, _ in page.attributes if name.startswith("on")]
        assert HOSTILE in Page(client.get(group_address).text).text


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/nothing", 404),
        ("/run/no/such", 404),
        (f"{GROUP}{'9' * 20}", 404),
        ("/group/../../etc/passwd/0", 404),
        ("/groups?show=x", 422),
        ("/assets/../app.py", 404),
    ],
)
def test_what_there_is_not_or_breaks_is_a_page_that_says_so(client, root, address, status):
    assert "Traceback" not in shown(client, address, status)
    store(root, 1).path.write_bytes(b"broken")
    assert "no trajectory store" in shown(client, GROUP, 500)


def test_a_person_scores_groups_blind_and_the_judge_is_compared_with_the_scores(client, root):
    address = f"/annotate{GROUP.removeprefix('/group')}"
    html = client.get(address).text
    for part in ("0.90", "because", "no success", "gavel/stand-in", "addresses the judge"):
        assert part not in html
    assert client.post(address, data={"score-0": "11"}).status_code == 422
    assert client.post(address, content="x" * 200_000).status_code == 422
    while (picked := client.get("/annotate", params={"run": RUN}, follow_redirects=False)).status_code == 303:
        where = picked.headers["location"]
        saved = client.post(where, data={"score-0": "2", "score-1": "9"}, follow_redirects=False)
        assert saved.status_code == 303
    assert picked.status_code == 404
    assert "you have scored 4 groups" in shown(client, "/").lower()
    assert "you:" in shown(client, GROUP)
    assert len(client.get("/annotations/golden.json").json()) == 4
    report = CliRunner().invoke(judge, ["report", str(root / "annotations.jsonl"), "--reference", "human"])
    assert report.exit_code == 0, report.output
    assert "kendall" in report.output.lower()


TOKEN = "the-token-of-the-address"


def guarded(token, host="127.0.0.1:8095"):
    app = Starlette(routes=[Route("/{path:path}", lambda request: PlainTextResponse("shown"), methods=["GET", "POST"])])
    return TestClient(Guard(app, token), base_url=f"http://{host}", follow_redirects=False)


def test_a_token_is_needed_once_and_leaves_the_address():
    asked = guarded(TOKEN, "box.example")
    assert asked.get("/").status_code == 403
    assert asked.get("/?token=wrong").status_code == 403
    answer = asked.get(f"/groups?q=a%26b&token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/groups?q=a%26b")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert asked.get("/groups").text == "shown"
    assert TestClient(asked.app, base_url="http://box", cookies={COOKIE: "wrong"}).get("/").status_code == 403


def test_another_name_that_leads_here_forms_of_other_sites_and_scripts_of_others_are_refused():
    for host in ("127.0.0.1.evil.example", "192.168.0.1:8095"):
        assert guarded(None, host).get("/").status_code == 421
    for origin, status in (("http://evil.example", 403), ("null", 403), ("http://127.0.0.1:8095", 200)):
        assert guarded(None).post("/x", headers={"origin": origin}).status_code == status
    for answer in (guarded(None).get("/"), guarded(None, "evil").get("/"), guarded(TOKEN).get("/")):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
