"""With keys, pages ask the browser for one, which sees the key's projects alone."""

import re

import pytest

from gavel.judge.service.engine.admission import KeyStore
from gavel.judge.service.schemas import key_id_of
from tests.judge.service.http.pages.hostile import parsed
from tests.judge.service.http.pages.seeded import Site, accepted, judged, scored, whole

pytestmark = pytest.mark.slow
PAIR = {"a": scored(0.5), "b": scored(0.1)}


async def test_a_page_asks_for_a_key_and_names_the_one_that_it_got(service: Site):
    token = await service.key("ci", projects=["desk"])
    record = await judged(service.engine, PAIR, whole(), project="desk")
    for wrong in ("", "gavel_x_y", f"{token}x"):
        service.sign_in(wrong)
        asked = await service.client.get(f"/judgements/{record.id}?sort=score")
        assert (asked.status_code, asked.headers["www-authenticate"].partition(" ")[0]) == (401, "Basic")
        assert "API key" in parsed(asked).text
    service.sign_in(token)
    page = parsed(await service.client.get(f"/judgements/{record.id}?sort=score"))
    assert "key ci" in page.text
    assert "0.50" in page.text


async def test_pages_of_other_sites_cannot_use_the_browser_s_key(service: Site):
    service.sign_in(await service.key())
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}):
        answer = await service.client.post("/v1/score", content=b"{}", headers=headers)
        assert answer.status_code == 403
        assert (await service.client.get("/", headers=headers)).status_code == 403


async def test_a_key_s_projects_limit_what_its_pages_show(service: Site):
    mine = await judged(service.engine, PAIR, whole(), project="mine")
    other = await judged(service.engine, PAIR, whole(), project="others")
    await accepted(service.engine, project="others")
    service.sign_in(await service.key(projects=["mine", "ours"]))
    page = await service.client.get("/")
    assert re.findall(r'<tr id="j-([\w-]+)"', page.text) == [mine.id]
    assert "others" not in page.text
    assert "being judged" not in page.text
    codes = [(await service.client.get(path)).status_code for path in (f"/judgements/{other.id}", "/?project=others")]
    assert codes == [404, 403]


async def test_pages_close_with_their_key_and_do_not_count_as_its_requests(service: Site):
    token = await service.key(requests_per_minute=1)
    service.sign_in(token)
    assert [(await service.client.get("/")).status_code for _ in range(3)] == [200, 200, 200]
    KeyStore(service.engine.database).revoke(key_id_of(token))
    await service.engine.admission.refresh()
    assert (await service.client.get("/")).status_code == 401
