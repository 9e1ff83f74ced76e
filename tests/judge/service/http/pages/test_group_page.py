"""The list of judgements, and the page of one group."""

import asyncio
import json
import re
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from gavel.judge.service.http.pages import duration, member_rows, usd
from gavel.judge.service.schemas import Verdict
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


def test_the_best_come_first_and_those_without_a_score_last():
    members = [member(None), member(0.0), member(0.9), member(None), member(0.9)]
    rows = member_rows(list("abcde"), members, by_score=True)
    assert [(row.id, row.place) for row in rows] == [("c", 2), ("e", 4), ("b", 1), ("a", 0), ("d", 3)]
    assert [row.bar is None for row in rows] == [False, False, False, True, True]


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


PAIR = {"a": scored(0.5), "b": scored(0.1)}


def shown(answer: httpx.Response) -> list[str]:
    """The ids in a list, in order."""
    parsed(answer)
    return re.findall(r'<tr id="j-([\w-]+)"', answer.text)


async def test_filters_leave_out_what_is_not_like_them(service: Site):
    engine = service.engine
    running = (await accepted(engine, project="desk")).id
    done = (await judged(engine, PAIR, whole(), project="desk")).id
    broken = (await failed(engine, "no.", "Mend it.")).id
    half = (await judged(engine, {**PAIR, "c": Judgement(reason="no vote")}, whole("partial"), judge="other")).id
    minute = 60.0
    earlier, later = (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + each)) for each in (-minute, minute))
    for query, expected in {
        "status=unfinished": [running],
        "status=finished": [half, broken, done],
        "status=partial": [half],
        "project=desk": [done, running],
        "project=desk&status=scored": [done],
        "judge=other": [half],
        f"since={earlier}&until={later}": [half, broken, done, running],
        f"since={later}": [],
        f"until={earlier}": [],
        f"before={half}": [broken, done, running],
        "status=&project=&judge=&since=&until=": [half, broken, done, running],
    }.items():
        assert (query, shown(await service.client.get(f"/?{query}"))) == (query, expected)


async def test_groups_that_wait_for_members_stand_first(service: Site):
    for name, project, seconds in (("later", "desk", 900), (MARKUP.replace("/", ""), "shop", 90)):
        body = {"expected": 3, "id": "a", "project": project, "messages": [{"role": "user", "content": "a"}]}
        place = f"/v1/groups/{quote(name)}/members?wait=false"
        await service.client.post(place, json={**body, "deadline_seconds": seconds})
    found = parsed(await service.client.get("/")).text
    assert found.index(MARKUP.replace("/", "")) < found.index("later")
    assert "1 of 3" in found
    assert "Nothing has been judged yet" not in found
    assert "later" in parsed(await service.client.get("/?project=desk&status=unfinished")).text
    for query in ("project=shop", "status=finished", "judge=j", "since=2026-11-22"):
        assert "later" not in parsed(await service.client.get(f"/?{query}")).text
    service.sign_in(await service.key(projects=["shop"]))
    assert "later" not in parsed(await service.client.get("/")).text


async def test_no_text_becomes_a_part_of_the_list(service: Site):
    await judged(service.engine, PAIR, whole(), project=MARKUP, judge=MARKUP)
    assert parsed(await service.client.get("/")).text.count(MARKUP) == 2
    parsed(await service.client.get("/", params={"project": MARKUP, "judge": MARKUP}))
    for name in ("status", "since", "until", "before"):
        assert (await service.client.get("/", params={name: MARKUP})).status_code == 422
        parsed(await service.client.get("/", params={name: MARKUP}))


@pytest.mark.parametrize("query", ["status=nothing", "since=soon", "project=%00", "judge=" + "x" * 1001])
async def test_a_filter_that_is_none_is_refused_on_a_page(query: str, service: Site):
    answer = await service.client.get(f"/?{query}")
    assert (answer.status_code, "Unprocessable" in parsed(answer).text) == (422, True)
