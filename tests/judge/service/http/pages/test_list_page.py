"""The list of judgements."""

import re
import time
from urllib.parse import quote

import httpx
import pytest

from gavel.judge.service.http.pages.views import PAGE_SIZE
from gavel.scenarios.judgement import Judgement
from tests.judge.service.http.pages.hostile import MARKUP, parsed
from tests.judge.service.http.pages.seeded import Site, accepted, failed, judged, scored, whole

pytestmark = pytest.mark.slow
PAIR = {"a": scored(0.5), "b": scored(0.1)}


def shown(answer: httpx.Response) -> list[str]:
    """The ids in a list, in order."""
    parsed(answer)
    return re.findall(r'<tr id="j-([\w-]+)"', answer.text)


async def test_the_newest_come_first_with_status_tokens_and_cost(service: Site):
    first = await judged(service.engine, PAIR, whole(), project="desk")
    second = await accepted(service.engine)
    answer = await service.client.get("/")
    assert shown(answer) == [second.id, first.id]
    text = " ".join(parsed(answer).text.split())
    for part in (
        "running – openai/gpt-5-mini 2 being judged",
        "scored desk openai/gpt-5-mini 2 2 4,321 234 0.0032 USD",
    ):
        assert part in text


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
    await service.sign_in(await service.key(projects=["shop"]))
    assert "later" not in parsed(await service.client.get("/")).text


async def test_pages_follow_each_other_and_keep_the_filter(service: Site):
    ids = [(await accepted(service.engine, project="desk")).id for _ in range(PAGE_SIZE + 2)][::-1]
    await accepted(service.engine)
    first = await service.client.get("/?project=desk")
    assert shown(first) == ids[:PAGE_SIZE]
    (older,) = re.findall(r'<a href="([^"]+)" rel="next">', first.text)
    second = await service.client.get(older.replace("&amp;", "&"))
    assert shown(second) == ids[PAGE_SIZE:]
    assert 'rel="next"' not in second.text
    assert '<a href="/?project=desk">Newest</a>' in second.text
    assert ("live.js" in first.text, "live.js" in second.text) == (True, False)


async def test_no_text_becomes_a_part_of_the_page(service: Site):
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
