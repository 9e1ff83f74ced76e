"""The page of one group."""

import asyncio
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from gavel.judge.service.http.pages.views import MOST_COLUMNS, ScoreBar, duration, member_rows, usd
from gavel.judge.service.schemas.records import Verdict
from gavel.scenarios.judgement import Judgement, Vote
from tests.endpoint import Answer, Endpoint, Request, labels_in, says
from tests.judge.service.http.pages.hostile import MARKUP, parsed
from tests.judge.service.http.pages.seeded import Site, accepted, failed, judged, scored, site, whole
from tests.judge.service.in_process import config_of, group
from tests.limits import HANG_SECONDS

pytestmark = pytest.mark.slow
NAME = MARKUP.replace("/", "")
"""Of a group or a member: it stands in a path."""


async def test_it_shows_scores_errors_votes_explanations_tokens_and_cost(service: Site):
    members = {
        "careful": scored(0.8, 0.75, 0.85, standard_error=0.05, explanation="Looked first.", flags=["empty"]),
        "hasty": Judgement(reason="no vote: the judge gave none"),
    }
    record = await judged(service.engine, members, whole("partial", reason="1 of 2 is unscored"), rubric="Look.")
    answer = await service.client.get(f"/judgements/{record.id}")
    text = " ".join(parsed(answer).text.split())
    for shown in (
        "Group of 2 partial",
        "careful 0.80 ± 0.05 0.75 position #1 0.85 position #2",
        "Looked first. empty 2 votes of careful in full",
        "hasty no score",
        "no vote: the judge gave none",
        "1 of 2 is unscored",
        "4,321",
        "234",
        "0.0032 USD",
        "Rubric Look.",
    ):
        assert shown in text
    assert "secret words" not in text


async def test_no_text_becomes_a_part_of_the_page(service: Site):
    vote = Vote(
        score=0.5,
        position=0,
        order=0,
        model=MARKUP,
        served_by=f"{MARKUP} too",
        explanation=MARKUP,
        criteria={MARKUP: 0.5},
    )
    cast = Judgement(score=0.5, explanation=MARKUP, votes=[vote], flags=[MARKUP], criteria={MARKUP: 0.5})
    told = whole("partial", reason=MARKUP, warnings=[MARKUP], models=[MARKUP], mode=MARKUP)
    options = {"rubric": MARKUP, "reference": MARKUP, "criteria": [MARKUP, {"name": MARKUP, "text": MARKUP}]}
    record = await judged(service.engine, {MARKUP: cast, "b": Judgement(reason=MARKUP)}, told, judge=MARKUP, **options)
    page = parsed(await service.client.get(f"/judgements/{record.id}"))
    assert page.text.count(MARKUP) == 19
    other = parsed(await service.client.get(f"/judgements/{(await failed(service.engine, MARKUP, MARKUP)).id}"))
    assert other.text.count(MARKUP) == 4


async def test_a_group_that_is_not_finished_loads_itself_anew_with_scripts_and_without(service: Site):
    record = await accepted(service.engine, ("first", "second"), rubric="Look.")
    answer = await service.client.get(f"/judgements/{record.id}")
    page = parsed(answer)
    assert "Being judged." in page.text
    assert "first" in page.text
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in answer.text
    assert ("meta", {"name": "gavel-live-seconds", "content": "1"}) in page.elements
    verdict = Verdict(ids=["first", "second"], members=[scored(0.5), scored(0.1)], group=whole())
    await service.engine.store.finish(record, verdict)
    finished = await service.client.get(f"/judgements/{record.id}")
    assert "refresh" not in finished.text
    assert "live.js" not in finished.text


async def test_votes_are_shown_as_they_come(tmp_path: Path, endpoint: Endpoint):
    first_is_seen = asyncio.Event()
    loop = asyncio.get_running_loop()
    asked: list[Request] = []

    def step(request: Request) -> Answer:
        asked.append(request)
        if len(asked) > 1:
            asyncio.run_coroutine_threadsafe(first_is_seen.wait(), loop).result(HANG_SECONDS)
        entries = [{"trajectory_id": name, "explanation": "so", "score": 0.61} for name in labels_in(request)]
        return says(json.dumps({"scores": entries}))

    endpoint.script = [step]
    async with site(config_of(tmp_path, endpoint, {"orders": 2})) as service, asyncio.timeout(HANG_SECONDS):
        place = (await service.client.post("/v1/score?wait=false", json=group("a", "b"))).headers["location"]
        page = ""
        while "1 of 2 ballots are in" not in page:
            page = (await service.client.get(place.removeprefix("/v1"))).text
        assert page.count("0.61 <small>") == 2
        assert "no score" not in page
        first_is_seen.set()
        await service.client.get(f"{place}?wait=60")
        assert "<b>0.61</b>" in (await service.client.get(place.removeprefix("/v1"))).text


async def test_an_open_group_shows_who_came_and_when_it_closes(service: Site):
    async def join(member: str) -> str:
        body = {"expected": 3, "id": member, "project": "desk", "messages": [{"role": "user", "content": member}]}
        answer = await service.client.post(f"/v1/groups/{quote(NAME)}/members?wait=false", json=body)
        return answer.json()["judgement"]

    await join("first")
    place = f"/judgements/{await join(NAME)}"
    answer = await service.client.get(place)
    page = parsed(answer)
    text = " ".join(page.text.split())
    for shown in ("Group of 3 open", "2 of 3 members are here.", f"Group {NAME}", "Closes at the latest", "first"):
        assert shown in text
    assert page.text.count(NAME) == 2
    assert "refresh" in answer.text
    await join("third")
    assert "Group of 3" in (closed := parsed(await service.client.get(place)).text)
    assert "are here" not in closed


async def test_an_open_group_is_its_project_s(service: Site):
    body = {"expected": 3, "id": "a", "project": "mine", "messages": [{"role": "user", "content": "a"}]}
    answer = await service.client.post("/v1/groups/g/members?wait=false", json=body)
    await service.sign_in(await service.key(projects=["other"]))
    assert (await service.client.get(f"/judgements/{answer.json()['judgement']}")).status_code == 404
    await service.sign_in(await service.key(projects=["mine"]))
    assert (await service.client.get(f"/judgements/{answer.json()['judgement']}")).status_code == 200


async def test_of_what_is_not_retained_scores_and_costs_alone_are_shown(service: Site):
    members = {"a": scored(0.7, explanation="quotes words"), "b": Judgement(reason="quotes words")}
    record = await judged(service.engine, members, whole("partial", reason="quotes words"), retain=False)
    text = parsed(await service.client.get(f"/judgements/{record.id}")).text
    assert ("0.70" in text, "quotes" in text, '"retain": false' in text) == (True, False, True)
    kept = await service.engine.store.get(record.id)
    assert kept is not None
    assert kept.verdict is not None
    assert kept.verdict.members[0].explanation  # whoever sent it has not been answered yet


async def test_a_judge_that_could_not_be_asked_is_told_with_the_remedy(service: Site):
    record = await failed(service.engine, "the key is wrong.", "Set OPENAI_API_KEY.")
    text = parsed(await service.client.get(f"/judgements/{record.id}")).text
    assert "The judge could not be asked: the key is wrong. Set OPENAI_API_KEY." in text
    assert text.count("no score") == 2


async def test_a_page_that_has_not_changed_is_not_sent_again(service: Site):
    record = await judged(service.engine, {"a": scored(0.5), "b": scored(0.1)}, whole())
    first = await service.client.get(f"/judgements/{record.id}")
    again = await service.client.get(f"/judgements/{record.id}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("id", ["no-such-id", "%00", "%3Cscript%3Ealert(1)%3C/script%3E", "x" * 101])
async def test_what_is_not_there_is_told_on_a_page(id: str, service: Site):
    answer = await service.client.get(f"/judgements/{id}")
    assert answer.status_code in (404, 422)
    if answer.headers["content-type"].startswith("text/html"):
        parsed(answer)


def member(score: float | None, **votes: float) -> Judgement:
    """With its votes by order, such as o1=0.5."""
    cast = [Vote(score=vote, order=int(order[1:]), position=0, model="m") for order, vote in votes.items()]
    return Judgement(score=score, votes=cast)


@pytest.mark.parametrize(
    ("members", "shown"),
    [
        ([member(0.5, o0=0.4, o2=0.6), member(0.1, o1=0.1), member(None)], [[0.4, None, 0.6], [None, 0.1, None], []]),
        ([member(0.5, **{f"o{MOST_COLUMNS}": 0.6}, o0=0.4), member(None)], [[0.4, 0.6], []]),
    ],
    ids=["each order is a column", "of many orders each member has its own"],
)
def test_votes_are_columns_and_a_missing_one_a_gap(members: list[Judgement], shown: list[list[float | None]]):
    rows = member_rows(["a", "b", "c"][: len(members)], members, by_score=False)
    assert [[cast and cast.score for cast in row.votes] for row in rows] == shown


def test_the_best_come_first_and_those_without_a_score_last():
    members = [member(None), member(0.0), member(0.9), member(None), member(0.9)]
    rows = member_rows(list("abcde"), members, by_score=True)
    assert [(row.id, row.place) for row in rows] == [("c", 2), ("e", 4), ("b", 1), ("a", 0), ("d", 3)]
    assert [row.bar is None for row in rows] == [False, False, False, True, True]


def test_scores_and_errors_have_one_scale_and_lie_on_the_line():
    bar = ScoreBar.of(0.5, 0.25, [0.0, 1.0])
    assert (bar.low, bar.score, bar.high, bar.votes) == (34.5, 64.0, 93.5, (5.0, 123.0))
    assert ScoreBar.of(0.5, 9.0, []).low == 5.0


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.0, "0.00 USD"), (0.00321, "0.0032 USD"), (0.0000012, "0.0000012 USD"), (1234.5, "1,234.50 USD")],
)
def test_what_costs_something_is_not_shown_as_nothing(value: float | None, shown: str):
    assert usd(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "–"), (0.0037, "4 ms"), (0.9996, "1.0 s"), (9.96, "10 s"), (59.6, "1 min 0 s"), (90_000.0, "25 h 0 min")],
)
def test_durations_are_rounded_to_what_they_are_shown_in(seconds: float | None, shown: str):
    assert duration(seconds) == shown


@pytest.mark.parametrize("name", ["style.css", "live.js", "icon.svg"])
async def test_a_file_of_the_pages_loads_nothing_from_elsewhere(name: str, service: Site):
    found = await service.client.get(f"/assets/{name}")
    assert found.status_code == 200
    assert b"http" not in found.content.replace(b"http://www.w3.org/2000/svg", b"")
