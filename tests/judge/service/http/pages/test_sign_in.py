"""With keys, pages ask for one; the session that it gives opens pages and nothing else."""

import re

import pytest

from gavel.judge.service.engine.admission import SESSION_SECONDS as SECONDS
from gavel.judge.service.http.pages.routes import COOKIE
from gavel.judge.service.schemas.records import key_id_of
from gavel.judge.service.store.key_store import KeyStore
from tests.judge.service.http.pages.hostile import MARKUP, parsed
from tests.judge.service.http.pages.seeded import OWN_ORIGIN, Site, accepted, judged, scored, whole

pytestmark = pytest.mark.slow
PAIR = {"a": scored(0.5), "b": scored(0.1)}


async def test_a_page_asks_for_a_key_and_goes_on_where_one_was(service: Site):
    token = await service.key("ci", projects=["desk"])
    record = await judged(service.engine, PAIR, whole(), project="desk")
    asked = await service.client.get(f"/judgements/{record.id}?sort=score")
    assert asked.status_code == 303
    form = await service.client.get(asked.headers["location"])
    (following,) = [str(a["value"]) for tag, a in parsed(form).elements if tag == "input" and a.get("type") == "hidden"]
    assert following == f"/judgements/{record.id}?sort=score"
    answer = await service.client.post("/sign-in", data={"key": f" {token}\n", "next": following}, headers=OWN_ORIGIN)
    assert (answer.status_code, answer.headers["location"]) == (303, following)
    page = parsed(await service.client.get(following))
    assert "key ci" in page.text
    assert "0.50" in page.text


async def test_the_cookie_is_not_the_key_and_out_of_reach(service: Site):
    token = await service.key()
    plain, tls = [
        (
            await service.client.post(
                "/sign-in", data={"key": token}, headers={"Host": host, "Origin": f"{scheme}://{host}"}
            )
        )
        for scheme, host in (("http", "127.0.0.1"), ("https", "judge.example"))
    ]
    cookie = plain.headers["set-cookie"]
    assert token.split("_", 2)[2] not in cookie
    assert {"HttpOnly", "SameSite=lax", "Path=/", f"Max-Age={SECONDS}"} <= set(cookie.split("; "))
    assert ("Secure" in cookie, "Secure" in tls.headers["set-cookie"]) == (False, True)
    session = {"Authorization": f"Bearer {service.client.cookies[COOKIE]}"}
    for headers in ({}, session):
        assert (await service.client.get("/v1/judgements", headers=headers)).status_code == 401


@pytest.mark.parametrize("key", ["", "gavel_x_y", MARKUP, "\udcff", "x" * 900])
async def test_a_key_that_is_none_gives_the_form_again(key: str, service: Site):
    await service.key()
    data = {"key": key.encode("utf-8", "replace").decode(), "next": "/?project=desk"}
    answer = await service.client.post("/sign-in", data=data, headers=OWN_ORIGIN)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    page = parsed(answer)
    assert not [a for tag, a in page.elements if tag == "input" and a.get("type") == "password" and a.get("value")]
    assert "alert(1)" not in answer.text


@pytest.mark.parametrize(
    "next",
    [
        "https://evil.example/",
        "javascript:alert(1)",
    ],
)
async def test_one_is_never_sent_to_another_place(next: str, service: Site):
    token = await service.key()
    assert f'value="{next}"' not in (await service.client.get("/sign-in", params={"next": next})).text
    answer = await service.client.post("/sign-in", data={"key": token, "next": next}, headers=OWN_ORIGIN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


@pytest.mark.parametrize("path", ["/sign-in", "/sign-out"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_forms_of_other_sites_are_refused(path: str, headers: dict[str, str], service: Site):
    answer = await service.client.post(path, data={"key": await service.key()}, headers=headers)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


async def test_a_key_s_projects_limit_what_its_session_sees(service: Site):
    mine = await judged(service.engine, PAIR, whole(), project="mine")
    other = await judged(service.engine, PAIR, whole(), project="others")
    await accepted(service.engine, project="others")
    await service.sign_in(await service.key(projects=["mine", "ours"]))
    page = await service.client.get("/")
    assert re.findall(r'<tr id="j-([\w-]+)"', page.text) == [mine.id]
    assert "others" not in page.text
    assert "being judged" not in page.text
    codes = [(await service.client.get(path)).status_code for path in (f"/judgements/{other.id}", "/?project=others")]
    assert codes == [404, 403]


async def test_a_session_ends_with_its_key(service: Site):
    token = await service.key()
    await service.sign_in(token)
    KeyStore(service.engine.database).revoke(key_id_of(token))
    await service.engine.admission.refresh()
    assert (await service.client.get("/")).status_code == 303
